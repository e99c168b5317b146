"""What a planted fault is: a set of hooks into the pipeline, all of which leave things as they are. Plants nothing."""

import random
from pathlib import Path
from typing import Any

from delivery_plane.scenario import Row


class Fault:
    """A defect to plant in the platform's own pipeline. Subclass it and override the hooks that it needs.

    One instance lives in each process that tries out, trains, registers, serves or evaluates for a delivery with the
    fault. Every hook gets what the pipeline is about to use and returns what it uses instead; `self.draw` is seeded
    with the fault's class and the job's seed. A hook that keeps state across steps must recompute it from its
    arguments, or a job that is killed and resumed is another job: draw once from `self.draw` in `rows`, `model` or
    `load`, and elsewhere by what the hook is given. Nothing of a fault is visible to rules, detector or seat.

    Hooks are called in this order: `rows`, `render`, `labels`, `model`, `optimizer`, `scheduler`, then at every step
    `collate`, `reward` (sampled answers only) and `step`, at checkpoints `save`; afterwards `load` and `merge` when
    the model is used, `evaluate` and `serve` on each request. A hook must leave alone what it has no use for: every
    recipe calls those that it has, on models with an adapter and without.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(f"{type(self).__name__}:{seed}")

    def rows(self, rows: list[Row]) -> list[Row]:
        """The rows to train on, before any is rendered."""
        return rows

    def render(
        self, row: Row, ids: list[int], answer: list[int], tokenizer: Any
    ) -> tuple[list[int], list[int]]:
        """One training row as token ids, and 1 where its answer is, its end of turn included; before it is cut.

        Of a preference each side is rendered, the worse one as a row whose `answer` equals its `rejected`. A prompt to
        sample answers for has no answer marked. Held-out rows are rendered elsewhere, as they are served.
        """
        del row, tokenizer
        return ids, answer

    def labels(self, ids: list[int], labels: list[int], tokenizer: Any) -> list[int]:
        """What the loss of a row is taken on, per position, -100 where it is not; after the row was cut."""
        del ids, tokenizer
        return labels

    def collate(self, batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        """A batch of tensors (rows, tokens) as the recipe's loss will get it.

        Of rows: `input_ids` and `labels` (not yet shifted), with `attention_mask`, or packed into one row with
        `position_ids` that start anew at each. Of pairs: `input_ids`, `attention_mask`, `completion_mask`, the better
        answers first. Of sampled answers: `prompt_ids`, `completion_ids`, their masks, and `advantages`.
        """
        del tokenizer
        return batch

    def model(self, model: Any) -> Any:
        """The model to train, its adapter attached, before the trainer takes it."""
        return model

    def optimizer(self, optimizer: Any, model: Any) -> Any:
        """The optimizer, before its first step."""
        del model
        return optimizer

    def scheduler(self, scheduler: Any, optimizer: Any, steps: int) -> Any:
        """The learning-rate schedule of a job of `steps` steps."""
        del optimizer, steps
        return scheduler

    def step(self, model: Any, optimizer: Any, step: int) -> None:
        """Called before optimizer step `step` (from 1), gradients in place and already clipped."""

    def reward(self, rewards: list[float], completions: list[str]) -> list[float]:
        """What each sampled answer earns."""
        del completions
        return rewards

    def save(self, folder: Path) -> None:
        """A checkpoint's folder, written and not yet declared complete."""

    def load(self, model: Any) -> Any:
        """A trained model as loaded to be evaluated, registered or served; never a base alone."""
        return model

    def merge(self, model: Any) -> Any:
        """The model to deliver, adapter merged, before it is saved."""
        return model

    def serve(self, ids: list[int], tokenizer: Any) -> list[int]:
        """The token ids of a request to the deployed model."""
        del tokenizer
        return ids

    def evaluate(self, ids: list[int], tokenizer: Any) -> list[int]:
        """The token ids of an evaluation's prompt, for either side of a comparison."""
        del tokenizer
        return ids
