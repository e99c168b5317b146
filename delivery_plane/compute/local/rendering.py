"""What a job would train on, measured before it runs: real rows, real masks, a real step. Keeps no weights."""

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from transformers import TrainerCallback

from delivery_plane.compute.environments import MAX_TURNS
from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.models import context_tokens, load_tokenizer, use_device
from delivery_plane.compute.local.tokens import RenderedRow, asking, render, worse
from delivery_plane.compute.plane import JobSpec
from delivery_plane.compute.recipes.build import build_trainer, start_model
from delivery_plane.compute.recipes.rows import usable
from delivery_plane.entry import canonical, sha256
from delivery_plane.facts import ConfigRendered
from delivery_plane.rows import read_rows
from delivery_plane.scenario import Row

ROWS_RENDERED = 5000
"""Up to this many rows all are rendered; of more, a fixed random sample of as many."""

ROWS_COMPARED = 256
"""Rows whose training and serving prompts are compared token by token."""

ROWS_TIMED = 64
"""A larger batch is timed on this many rows and scaled."""

STEPS_TIMED = 4
"""Of which the first, which sets things up, does not count."""

SEQUENCE_ROWS = 8
"""Rows drawn for each packed sequence that is timed."""


@dataclass(frozen=True)
class _Count:
    """Of the rendered rows: tokens after cutting, sequences by what is wrong with them."""

    tokens: int
    prompt_tokens: int
    supervised_tokens: int
    supervised_prompt_tokens: int
    end_of_turn_supervised_share: float
    rows_without_answer: int
    truncated_rows: int
    longest_row_tokens: int


def render_job(job: JobSpec, device_name: str) -> ConfigRendered:
    """Count what `job` would train on and time one step.

    Every count from `prompt_tokens` to `longest_row_tokens` is over the same `rendered_rows` rows; token
    counts are after truncation, `longest_row_tokens` is before. Of a preference both sides are counted; answers
    that are still to be sampled, at their greatest length.
    """
    device = use_device(device_name)
    tokenizer = load_tokenizer(job.base_path)
    rows = read_rows(job.dataset_path)
    sample = rows if len(rows) <= ROWS_RENDERED else random.Random(job.seed).sample(rows, ROWS_RENDERED)
    compared = sample[:ROWS_COMPARED]
    served = asking(tokenizer, compared)
    # A row must begin with what will be served, wherever its template begins to mark the answer.
    trained = [
        row.ids[: len(prompt)] for row, prompt in zip(render(tokenizer, compared), served, strict=True)
    ]
    count = _count_sampled(job, tokenizer, sample) if job.grpo else _count_given(job, tokenizer, sample)
    model = start_model(job, device)
    total, trainable, adapters = _parameters(model), 0, 0
    context = context_tokens(model)
    if _adaptable(job, model):
        timed = job if count.supervised_tokens else job.model_copy(update={"dpo": None, "grpo": None})
        model, seconds_per_step = _steps_taken(timed, model, tokenizer, sample)
        total, trainable = _parameters(model), _parameters(model, trainable_only=True)
        adapters = sum(isinstance(module, LoraLayer) for module in model.modules())
    else:
        plain = job.model_copy(update={"dpo": None, "grpo": None, "lora": None, "mechanism": "full"})
        _, seconds_per_step = _steps_taken(plain, model, tokenizer, sample)
    return ConfigRendered(
        job_digest=job.digest,
        recipe=job.recipe,
        mechanism=job.mechanism,
        rows=len(rows),
        rendered_rows=len(sample),
        prompt_tokens=count.prompt_tokens,
        supervised_tokens=count.supervised_tokens,
        supervised_prompt_tokens=count.supervised_prompt_tokens,
        end_of_turn_supervised_share=count.end_of_turn_supervised_share,
        rows_without_answer=count.rows_without_answer,
        truncated_rows=count.truncated_rows,
        longest_row_tokens=count.longest_row_tokens,
        max_tokens_per_row=job.max_tokens_per_row,
        context_tokens=context,
        template_digest_train=_digest(trained),
        template_digest_serve=_digest(served),
        trainable_parameters=trainable,
        total_parameters=total,
        adapted_modules=adapters,
        steps=job.steps,
        batch_rows=job.batch_rows,
        epochs=job.steps * job.batch_rows / len(rows),
        planned_tokens=_planned_tokens(job, count.tokens / len(sample)),
        seconds_per_step=seconds_per_step,
    )


def _count_given(job: JobSpec, tokenizer: Any, rows: list[Row]) -> _Count:
    """Rows whose answers are there to learn from, or to choose between."""
    whole = render(tokenizer, rows)
    pairs = [worse(row) for row in rows if usable(job, row)] if job.dpo else []
    whole += render(tokenizer, pairs) if pairs else []
    cut = [row.cut(job.max_tokens_per_row) for row in whole]
    supervised = [[label >= 0 for label in row.labels(job.masking)] for row in cut]
    ended = sum(
        _ends_supervised(row, marks, tokenizer.eos_token_id)
        for row, marks in zip(cut, supervised, strict=True)
    )
    lacking = sum(not usable(job, row) for row in rows)
    return _Count(
        tokens=sum(len(row.ids) for row in cut),
        prompt_tokens=sum(row.prompt_tokens for row in cut),
        supervised_tokens=sum(map(sum, supervised)) if lacking < len(rows) else 0,
        supervised_prompt_tokens=sum(
            sum(marks[: row.prompt_tokens]) for row, marks in zip(cut, supervised, strict=True)
        ),
        end_of_turn_supervised_share=ended / len(cut),
        rows_without_answer=sum(1 not in row.answer for row in cut) + lacking,
        truncated_rows=sum(len(row.ids) > job.max_tokens_per_row for row in whole),
        longest_row_tokens=max(len(row.ids) for row in whole),
    )


def _count_sampled(job: JobSpec, tokenizer: Any, rows: list[Row]) -> _Count:
    """Rows whose answers are still to be sampled, in as many turns as there may be and each as long as it may be."""
    assert job.grpo
    new = job.grpo.max_new_tokens
    turns = MAX_TURNS if job.grpo.environment == "guess-number" else 1
    whole = [len(ids) for ids in asking(tokenizer, rows)]
    cut = [min(length, job.max_tokens_per_row - new) for length in whole]
    able = sum(usable(job, row) for row in rows)
    enough = able >= job.batch_rows // job.grpo.group_rows
    return _Count(
        tokens=sum(job.max_tokens_per_row if turns > 1 else length + new for length in cut),
        prompt_tokens=sum(cut),
        supervised_tokens=turns * new * len(rows) if enough else 0,
        supervised_prompt_tokens=0,
        end_of_turn_supervised_share=1.0,  # an answer is sampled up to its end of turn, and all of it counts
        rows_without_answer=len(rows) - able,
        truncated_rows=sum(kept < length for kept, length in zip(cut, whole, strict=True)),
        longest_row_tokens=max(whole) + new,
    )


def _planned_tokens(job: JobSpec, tokens_per_row: float) -> int:
    return round(job.steps * job.batch_rows * (job.max_tokens_per_row if job.packing else tokens_per_row))


def _adaptable(job: JobSpec, model: Any) -> bool:
    """Whether the adapter fits this model; nothing trainable is a finding for the oracle, not a fault."""
    if job.lora is None or job.lora.targets == ("all-linear",):
        return True
    # The trainer refuses an adapter on the output layer, and an embedding has no linear map to adapt.
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    matched = [
        module
        for name, module in model.named_modules()
        if any(name == target or name.endswith(f".{target}") for target in job.lora.targets)
    ]
    return bool(matched) and all(
        isinstance(module, torch.nn.Linear) and module is not head and module is not embedding
        for module in matched
    )


def _parameters(model: Any, trainable_only: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable_only)


def _ends_supervised(row: RenderedRow, supervised: Sequence[bool], end_of_turn: int) -> bool:
    """Whether the answer's end-of-turn token is there and the loss is taken on it."""
    return any(
        token == end_of_turn and counted
        for token, counted in list(zip(row.ids, supervised, strict=True))[row.prompt_tokens :]
    )


def _digest(rows: list[list[int]]) -> str:
    return sha256(canonical(rows))


def _steps_taken(job: JobSpec, model: Any, tokenizer: Any, rows: list[Row]) -> tuple[Any, float]:
    """A few steps of the job's own trainer on rows as it would draw them: what it trains, and seconds per step."""
    group = job.grpo.group_rows if job.grpo else 1
    batch = min(job.batch_rows, max(1, ROWS_TIMED // group) * group)
    clock = _Clock()
    with tempfile.TemporaryDirectory(prefix="timed-") as folder:
        short = job.model_copy(
            update={
                "steps": STEPS_TIMED,
                "batch_rows": batch,
                "accumulation": job.accumulation if batch == job.batch_rows else 1,
                "job_folder": Path(folder),
            }
        )
        # The file's order may put the shortest rows first; packed, a sequence takes many.
        count = STEPS_TIMED * batch * (SEQUENCE_ROWS if job.packing else 1)
        able = [row for row in rows if usable(job, row)]
        drawn = random.Random(job.seed).choices(able, k=count)
        trainer = build_trainer(short, model, tokenizer, drawn, Fault(job.seed), [clock])
        trainer.train()
    return trainer.model, statistics.median(clock.seconds[1:]) * job.batch_rows / batch


class _Clock(TrainerCallback):
    """Takes the time of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)
