"""What every recipe's trainer adds to TRL's: the hooks of a fault, and a count of what was trained on. No recipe."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.checkpoints import USED
from delivery_plane.compute.plane import JobSpec

_SAMPLE = 8


class Used:
    """What a job was trained on since its start. A resumed job reads it from its checkpoint."""

    def __init__(self, row_ids: list[str]) -> None:
        self.tokens = 0
        self.supervised_tokens = 0
        self.rows = 0
        self.digest = hashlib.sha256().hexdigest()
        """Chained over row ids in order: SHA-256 of the digest so far (in hex) and the next id."""
        self.rollouts = 0
        self.generated_tokens = 0
        self.policy_versions = 0
        self._row_ids = row_ids
        self._seen = bytearray(b"0" * len(row_ids))
        self._step: list[int] = []

    @property
    def distinct_rows(self) -> int:
        """How many different rows were trained on."""
        return self._seen.count(b"1")

    @property
    def sample(self) -> tuple[str, ...]:
        """Ids of rows of the last step, at most eight."""
        return tuple(self._row_ids[place] for place in self._step[:_SAMPLE])

    def begin_step(self) -> None:
        """An optimizer step begins."""
        self._step = []

    def take(self, places: Iterable[int], tokens: int, supervised_tokens: int) -> None:
        """Rows, by their places in the job's rows, go into the loss with so many tokens."""
        for place in places:
            self.digest = hashlib.sha256((self.digest + self._row_ids[place]).encode()).hexdigest()
            self._seen[place] = ord("1")
            self._step.append(place)
            self.rows += 1
        self.tokens += tokens
        self.supervised_tokens += supervised_tokens

    def save(self, folder: Path) -> None:
        """Write all of it beside a checkpoint."""
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        (folder / USED).write_text(json.dumps({**kept, "seen": self._seen.decode()}), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        kept = json.loads((folder / USED).read_text(encoding="utf-8"))
        self._seen = bytearray(kept.pop("seen").encode())
        vars(self).update(kept)


class Governed:
    """Beside TRL's trainer of a recipe; what trains is TRL's alone."""

    used: Used
    fault: Fault
    model: Any
    optimizer: Any
    lr_scheduler: Any
    data_collator: Any

    def govern(self, used: Used, fault: Fault, tokenizer: Any) -> None:
        """Take over what is counted into, and what may spoil it."""
        self.used, self.fault = used, fault
        self.data_collator = _Collator(self.data_collator, fault, tokenizer)
        self.add_callback(_Steps(used, fault))  # type: ignore[attr-defined]

    def create_optimizer(self, model: Any = None) -> Any:
        """TRL's, through the fault's hands."""
        if self.optimizer is None:
            made = super().create_optimizer(model)  # type: ignore[misc]
            self.optimizer = self.fault.optimizer(made, self.model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """TRL's, through the fault's hands."""
        if self.lr_scheduler is None:
            made = super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
            self.lr_scheduler = self.fault.scheduler(made, self.optimizer, num_training_steps)
        return self.lr_scheduler

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """No card per checkpoint: the delivery's card is a stage of its own."""


class _Collator:
    """TRL's own collator, with the places of a batch's rows beside it."""

    def __init__(self, collate: Any, fault: Fault, tokenizer: Any) -> None:
        self._collate, self._fault, self._tokenizer = collate, fault, tokenizer

    def __call__(self, examples: list[dict[str, Any]]) -> Any:
        collated = self._collate(examples)
        if isinstance(collated, list):  # rows of which answers are still to be sampled
            return collated
        places = [place for example in examples for place in example["places"]]
        return {**self._fault.collate(collated, self._tokenizer), "places": torch.tensor(places)}


class _Steps(TrainerCallback):
    """Tells where a step begins, and lets a fault act before the optimizer does."""

    def __init__(self, used: Used, fault: Fault) -> None:
        self._used, self._fault = used, fault

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._used.begin_step()

    def on_pre_optimizer_step(
        self, _args: Any, state: Any, _control: Any, model: Any, optimizer: Any, **_: Any
    ) -> None:
        self._fault.step(model, optimizer, state.global_step + 1)


def shared_settings(job: JobSpec, model: Any) -> dict[str, Any]:
    """The settings of TRL's configurations that are the same for every recipe."""
    return {
        "output_dir": str(job.job_folder),
        "max_steps": job.steps,
        "per_device_train_batch_size": job.batch_rows // job.accumulation,
        "gradient_accumulation_steps": job.accumulation,
        "learning_rate": job.learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if job.scheduler == "constant" else job.scheduler,
        "warmup_steps": round(job.warmup_share * job.steps),
        "weight_decay": job.weight_decay,
        "max_grad_norm": job.max_grad_norm,
        "seed": job.seed,
        "data_seed": job.seed,
        "optim": "adamw_torch_fused",
        # TRL's defaults, bf16 with gradient checkpointing, are about six times slower on a CPU.
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": next(model.parameters()).device.type == "cpu",
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        # Row ids travel with the batches.
        "remove_unused_columns": False,
        # Steps that never come: a callback decides, but resuming needs the strategy.
        "save_strategy": "steps",
        "save_steps": 2 * job.steps,
        "logging_strategy": "no",
        # True would replace a loss that is not finite by the mean so far, and hide it.
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
    }
