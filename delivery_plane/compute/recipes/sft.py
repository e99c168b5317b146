"""Supervised fine-tuning: TRL's trainer, loss, collator and packing, on rows rendered by this platform."""

from typing import Any

from datasets import Dataset
from trl import SFTConfig, SFTTrainer
from trl.data_utils import pack_dataset

from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.tokens import IGNORED
from delivery_plane.compute.plane import JobSpec
from delivery_plane.compute.recipes.governed import Governed, shared_settings
from delivery_plane.compute.recipes.rows import training_rows
from delivery_plane.scenario import Row


class Sft(Governed, SFTTrainer):  # type: ignore[misc,unused-ignore]
    """TRL's trainer, counting what it has trained on."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        """TRL's loss. Counted here, not in the collator, which runs a batch ahead."""
        places, ids = inputs.pop("places"), inputs["input_ids"]
        mask = inputs.get("attention_mask")
        self.used.take(
            places.tolist(),
            ids.numel() if mask is None else int(mask.sum()),
            int((inputs["labels"] != IGNORED).sum()),
        )
        return super().compute_loss(model, inputs, *args, **options)


def sft_trainer(
    job: JobSpec,
    model: Any,
    _reference: None,
    tokenizer: Any,
    rows: list[Row],
    fault: Fault,
    callbacks: list[Any],
) -> Sft:
    """The trainer over rows; packed, `batch_rows` counts sequences of several rows each."""
    rendered = training_rows(job, tokenizer, rows, fault)
    columns = {"input_ids": [row.ids for row in rendered], "labels": [row.labels for row in rendered]}
    if job.packing:
        # A column per token, which is packed as the others are.
        per_token = [[place] * len(row.ids) for place, row in enumerate(rendered)]
        whole = Dataset.from_dict({**columns, "places": per_token})
        dataset = pack_dataset(whole, job.max_tokens_per_row, "bfd").map(_one_place_a_row)
    else:
        dataset = Dataset.from_dict({**columns, "places": [[place] for place in range(len(rendered))]})
    return Sft(
        model=model,
        args=SFTConfig(
            **shared_settings(job, model),
            packing=job.packing,
            max_length=job.max_tokens_per_row,
            # Rendered, cut and packed above.
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def _one_place_a_row(packed: dict[str, Any]) -> dict[str, Any]:
    starts = [sum(packed["seq_lengths"][:i]) for i in range(len(packed["seq_lengths"]))]
    return {"places": [packed["places"][start] for start in starts]}
