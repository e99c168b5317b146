"""What a job would train on, measured before it runs: real rows, real masks, a real batch. Trains nothing."""

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from peft.tuners.lora import LoraLayer

from delivery_plane.compute.local.models import context_tokens, load_base, load_tokenizer, use_device
from delivery_plane.compute.local.tokens import RenderedRow, render, serving_prompts
from delivery_plane.compute.plane import JobSpec
from delivery_plane.compute.recipes.sft import LeftPadded, adapted, supervised_loss
from delivery_plane.entry import canonical, sha256
from delivery_plane.facts import ConfigRendered
from delivery_plane.rows import read_rows

ROWS_RENDERED = 5000
"""Up to this many rows all are rendered; of more, a fixed random sample of as many."""

ROWS_COMPARED = 256
"""Rows whose training and serving prompts are compared token by token."""

ROWS_TIMED = 64
"""A larger batch is timed on this many rows and scaled."""


def render_job(job: JobSpec, device_name: str) -> ConfigRendered:
    """Count what `job` would train on and time one batch.

    Every count from `prompt_tokens` to `longest_row_tokens` is over the same `rendered_rows` rows; token
    counts are after truncation, `longest_row_tokens` is before.
    """
    device = use_device(device_name)
    tokenizer = load_tokenizer(job.base_path)
    rows = read_rows(job.dataset_path)
    sample = rows if len(rows) <= ROWS_RENDERED else random.Random(job.seed).sample(rows, ROWS_RENDERED)
    whole = render(tokenizer, sample)
    cut = [row.cut(job.max_tokens_per_row) for row in whole]
    supervised = [[label >= 0 for label in row.labels(job.masking)] for row in cut]
    compared = range(min(ROWS_COMPARED, len(sample)))
    served = serving_prompts(tokenizer, [sample[i]["prompt"] for i in compared])
    # A row must begin with what will be served, wherever its template begins to mark the answer.
    trained = [whole[i].ids[: len(served[i])] for i in compared]
    model = load_base(job.base_path, device)
    total, trainable, adapters = _parameters(model), 0, 0
    adapts = _adaptable(job, model)
    if adapts:
        model = adapted(job, model)
        total, trainable = _parameters(model), _parameters(model, trainable_only=True)
        adapters = sum(isinstance(module, LoraLayer) for module in model.modules())
    tokens = sum(len(row.ids) for row in cut)
    return ConfigRendered(
        job_digest=job.digest,
        mechanism=job.mechanism,
        rows=len(rows),
        rendered_rows=len(sample),
        prompt_tokens=sum(row.prompt_tokens for row in cut),
        supervised_tokens=sum(map(sum, supervised)),
        supervised_prompt_tokens=sum(
            sum(marks[: row.prompt_tokens]) for row, marks in zip(cut, supervised, strict=True)
        ),
        end_of_turn_supervised_share=sum(
            _ends_supervised(row, marks, tokenizer.eos_token_id)
            for row, marks in zip(cut, supervised, strict=True)
        )
        / len(sample),
        rows_without_answer=sum(1 not in row.answer for row in cut),
        truncated_rows=sum(len(row.ids) > job.max_tokens_per_row for row in whole),
        longest_row_tokens=max(len(row.ids) for row in whole),
        max_tokens_per_row=job.max_tokens_per_row,
        context_tokens=context_tokens(model),
        template_digest_train=_digest(trained),
        template_digest_serve=_digest(served),
        trainable_parameters=trainable,
        total_parameters=total,
        adapted_modules=adapters,
        steps=job.steps,
        batch_rows=job.batch_rows,
        epochs=job.steps * job.batch_rows / len(rows),
        planned_tokens=round(job.steps * job.batch_rows * tokens / len(sample)),
        seconds_per_step=_seconds_per_step(job, model, tokenizer, cut, trains=adapts),
    )


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


def _seconds_per_step(
    job: JobSpec, model: Any, tokenizer: Any, rows: list[RenderedRow], trains: bool
) -> float:
    """Forward and backward over one batch, median of 3; without anything to train, forward alone."""
    # A batch as the trainer would draw it: the file's order may put the shortest rows first.
    timed = min(job.batch_rows, ROWS_TIMED)
    drawn = random.Random(job.seed).choices(rows, k=timed)
    encoded = [{"input_ids": row.ids, "labels": row.labels(job.masking)} for row in drawn]
    batch = {
        name: value.to(model.device) for name, value in LeftPadded(tokenizer.pad_token_id)(encoded).items()
    }
    model.train()
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        loss = supervised_loss(model, batch)
        if trains and loss.requires_grad:
            loss.backward()
        float(loss)
        seconds.append(time.perf_counter() - started)
        model.zero_grad(set_to_none=True)
    return statistics.median(seconds) * job.batch_rows / timed
