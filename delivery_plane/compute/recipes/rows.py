"""Rows as a job trains on them: rendered, cut, labelled, each step through a fault's hands. Loads no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from delivery_plane.compute.environments import environment
from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.tokens import RenderedRow, render
from delivery_plane.compute.plane import JobSpec
from delivery_plane.scenario import Row


@dataclass(frozen=True)
class TrainingRow:
    """A rendered row, and what the loss is taken on per position."""

    ids: list[int]
    labels: list[int]


def usable(job: JobSpec, row: Row) -> bool:
    """Whether a row holds what the job's recipe needs of it: a pair, or a prompt that its environment knows."""
    if job.dpo:
        return "rejected" in row
    if job.grpo:
        try:
            environment(job.grpo.environment, row, job.metric, 0)
        except (AttributeError, ValueError):
            return False
    return True


def training_rows(job: JobSpec, tokenizer: Any, rows: Sequence[Row], fault: Fault) -> list[TrainingRow]:
    """Every row as it goes into a batch, in order."""
    found = []
    for row, rendered in zip(rows, render(tokenizer, rows), strict=True):
        ids, answer = fault.render(row, rendered.ids, rendered.answer, tokenizer)
        cut = RenderedRow(ids, answer).cut(job.max_tokens_per_row)
        labels = fault.labels(cut.ids, cut.labels(job.masking), tokenizer)
        found.append(TrainingRow(cut.ids, labels))
    return found
