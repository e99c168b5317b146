"""Direct preference optimisation: TRL's trainer and loss, on pairs rendered by this platform."""

from typing import Any

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.tokens import IGNORED, worse
from delivery_plane.compute.plane import JobSpec
from delivery_plane.compute.recipes.governed import Governed, shared_settings
from delivery_plane.compute.recipes.rows import TrainingRow, training_rows
from delivery_plane.scenario import Row


class Dpo(Governed, DPOTrainer):  # type: ignore[misc,unused-ignore]
    """TRL's trainer, counting what it has trained on: both sides of each pair."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """As it is: the pairs are rendered and cut already."""
        return dataset

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        """TRL's loss. Counted here, not in the collator, which runs a batch ahead."""
        places = inputs.pop("places")
        self.used.take(
            places.tolist(), int(inputs["attention_mask"].sum()), int(inputs["completion_mask"].sum())
        )
        return super().compute_loss(model, inputs, *args, **options)


def dpo_trainer(
    job: JobSpec,
    model: Any,
    reference: Any,
    tokenizer: Any,
    rows: list[Row],
    fault: Fault,
    callbacks: list[Any],
) -> Dpo:
    """The trainer over pairs, held to `reference`, or to the model without its adapter if that is None."""
    assert job.dpo
    chosen = training_rows(job, tokenizer, rows, fault)
    rejected = training_rows(job, tokenizer, [worse(row) for row in rows], fault)
    columns: dict[str, list[list[int]]] = {
        "prompt_ids": [_parts(row)[0] for row in chosen],
        "chosen_ids": [_parts(row)[1] for row in chosen],
        "rejected_ids": [_parts(row)[1] for row in rejected],
        "places": [[place] for place in range(len(rows))],
    }
    return Dpo(
        model=model,
        ref_model=reference,
        args=DPOConfig(**shared_settings(job, model), beta=job.dpo.beta, max_length=None),
        train_dataset=Dataset.from_dict(columns),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def _parts(row: TrainingRow) -> tuple[list[int], list[int]]:
    """The prompt, and the answer: from the first to the last position that the loss is taken on."""
    supervised = [place for place, label in enumerate(row.labels) if label != IGNORED]
    first, last = (supervised[0], supervised[-1] + 1) if supervised else (len(row.ids),) * 2
    return row.ids[:first], row.ids[first:last]
