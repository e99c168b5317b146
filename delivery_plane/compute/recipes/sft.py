"""Supervised fine-tuning with TRL, full or LoRA. When it is probed and saved is the trainer's business."""

from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from delivery_plane.compute.local.tokens import IGNORED, RenderedRow, left_padded
from delivery_plane.compute.plane import JobSpec


def adapted(job: JobSpec, model: Any) -> Any:
    """The model to train: as it is, or with a fresh adapter. Raises ValueError if the targets match nothing."""
    if job.lora is None:
        return model
    set_seed(job.seed)
    targets: Any = list(job.lora.targets)
    return get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=job.lora.rank,
            lora_alpha=job.lora.alpha,
            lora_dropout=job.lora.dropout,
            target_modules="all-linear" if targets == ["all-linear"] else targets,
        ),
    )


def sft_trainer(
    job: JobSpec, model: Any, tokenizer: Any, rows: list[RenderedRow], callback: TrainerCallback
) -> "Sft":
    """A trainer over rendered (and truncated) rows that saves only when `callback` says so."""
    arguments = SFTConfig(
        output_dir=str(job.job_folder),
        max_steps=job.steps,
        per_device_train_batch_size=job.batch_rows,
        learning_rate=job.learning_rate,
        lr_scheduler_type="constant_with_warmup" if job.scheduler == "constant" else job.scheduler,
        warmup_steps=round(job.warmup_share * job.steps),
        seed=job.seed,
        data_seed=job.seed,
        optim="adamw_torch_fused",
        # TRL's defaults, bf16 with gradient checkpointing, are about six times slower on a CPU.
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=next(model.parameters()).device.type == "cpu",
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        # Steps that never come: the callback decides, but resuming needs the strategy.
        save_strategy="steps",
        save_steps=2 * job.steps,
        logging_strategy="no",
        # True would replace a loss that is not finite by the mean so far, and hide it.
        logging_nan_inf_filter=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        report_to="none",
        disable_tqdm=True,
    )
    dataset = Dataset.from_dict(
        {"input_ids": [row.ids for row in rows], "labels": [row.labels(job.masking) for row in rows]}
    )
    return Sft(
        model=model,
        args=arguments,
        train_dataset=dataset,
        data_collator=LeftPadded(tokenizer.pad_token_id),
        processing_class=tokenizer,
        callbacks=[callback],
    )


class LeftPadded:
    """Batches of rows padded on the left, so that the answers end together; (rows, tokens) each."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = pad_token_id

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = [row["input_ids"] for row in rows]
        mask = torch.tensor(left_padded([[1] * len(row) for row in ids], 0))
        return {
            "input_ids": torch.tensor(left_padded(ids, self._pad)),
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "labels": torch.tensor(left_padded([row["labels"] for row in rows], IGNORED)),
        }


def supervised_loss(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Mean loss in nats per supervised token, or zero without any.

    On a CPU, TRL's own loss puts every position through the output layer. With answers padded to end
    together, the few last columns hold all supervised positions, and only those are scored.
    """
    labels = inputs["labels"][:, 1:]
    supervised = labels != IGNORED
    columns = supervised.any(0).nonzero().flatten()
    given = {name: value for name, value in inputs.items() if name != "labels"}
    logits = model(**given, use_cache=False, logits_to_keep=columns).logits
    total = cross_entropy(
        logits.float().flatten(0, 1), labels[:, columns].flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / supervised.sum().clamp(min=1)


class Sft(SFTTrainer):
    """TRL's trainer with the loss above, counting what it has trained on."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.tokens = 0
        self.supervised_tokens = 0

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: ARG002
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> Any:
        """One batch per step and one process: the mean over the batch is the mean over the step."""
        # Counted here, not in the collator, which runs one batch ahead.
        self.tokens += int(inputs["attention_mask"].sum())
        self.supervised_tokens += int((inputs["labels"] != IGNORED).sum())
        return supervised_loss(model, inputs)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """No card per checkpoint: the delivery's card is a stage of its own."""
