"""A job tried out before anything is metered: its rows and their rendering, check by check. Keeps nothing of it.

Settings that no trial can run with fail a check too; nothing but the machine's or the platform's own fault raises.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from delivery_plane.compute.faults import planted
from delivery_plane.compute.local.models import load_tokenizer, use_device
from delivery_plane.compute.local.preflight_training import check, of_targets, of_training
from delivery_plane.compute.local.tokens import IGNORED, render
from delivery_plane.compute.local.trial import Document, Expected, Trial, try_out
from delivery_plane.compute.plane import JobSpec
from delivery_plane.compute.recipes.build import start_model
from delivery_plane.compute.recipes.rows import usable
from delivery_plane.errors import BadInput, one_line
from delivery_plane.facts import PreflightCheck as Check
from delivery_plane.facts import PreflightChecked
from delivery_plane.rows import read_rows
from delivery_plane.scenario import Row

TEMPLATE, DATA, PROBE = "the base's chat template", "the data", "the held-out probe"
"""What a failure is mended by where no setting is to blame."""

ARRIVING_SHARE = 0.9
"""Of the data's different rows, those that must still be different in the trainer. Source: a shuffled answer makes few
rows equal; a fault of the catalogue trains on 16 rows."""

OVERLAP_SHARE = 0.1
"""Held-out rows that may be training rows too. Source: intake's rules judge single rows; this asks whether the probe
is held out at all."""

LOSS_TOLERANCE = 1e-3
"""Relative. Source: in batches of other shapes logits differ by 2e-6; one token more or less changes far more."""

Pair = tuple[Document, Expected]


def check_job(job: JobSpec, device_name: str) -> PreflightChecked:
    """Try `job` out on one batch of its rows, for a few seconds. The same job gives the same checks."""
    started = time.perf_counter()
    checks = tuple(_checks(job, use_device(device_name)))
    return PreflightChecked(job_digest=job.digest, checks=checks, seconds=time.perf_counter() - started)


def _checks(job: JobSpec, device: torch.device) -> Iterator[Check]:
    tokenizer = load_tokenizer(job.base_path)
    told = [row for row in read_rows(job.dataset_path) if usable(job, row)]
    probe = read_rows(job.probe_path)
    yield from _of_rows(job, told, probe)
    start = start_model(job, device)
    if job.lora:
        fits = of_targets(job, start)
        yield fits
        if not fits.passed:
            return
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        try:
            trial = try_out(job, start, tokenizer, told, probe, Path(folder))
        except (BadInput, ValueError) as error:
            yield check("runs", False, one_line(error, 300), DATA if job.recipe == "sft" else job.recipe)
            return
    yield check("runs", True, f"{len(trial.rates)} steps on one batch", job.recipe)
    yield from _of_rendering(job, trial, tokenizer)
    yield from of_training(job, trial)


def _of_rows(job: JobSpec, rows: list[Row], probe: list[Row]) -> Iterator[Check]:
    trained = planted(job.fault, job.seed).rows(rows)
    there, left = len({_text(row) for row in rows}), len({_text(row) for row in trained})
    yield check(
        "rows-arrive",
        bool(trained) and left > ARRIVING_SHARE * there,
        f"{len(trained)} rows reach the trainer, {left} of them different; the data holds {there} different ones",
        DATA,
    )
    blank = sum(not row["prompt"].strip() or not (job.grpo or row["answer"].strip()) for row in trained)
    yield check("no-row-is-blank", blank == 0, f"{blank} rows have a blank prompt or answer", DATA)
    held_out = {_text(row) for row in probe}
    known = len(held_out & {_text(row) for row in trained})
    yield check(
        "probe-is-held-out",
        job.metric == "game_won" or known <= OVERLAP_SHARE * len(held_out),
        f"{known} of {len(held_out)} held-out rows are training rows",
        PROBE,
    )


def _text(row: Row) -> tuple[str, ...]:
    return row["prompt"], *row.get("turns", []), row["answer"]


def _of_rendering(job: JobSpec, trial: Trial, tokenizer: Any) -> Iterator[Check]:
    rows, wanted = trial.documents, trial.expected
    there = len(rows) == len(wanted) > 0
    yield check(
        "batch-holds-its-rows",
        there,
        f"the batch is of {len(wanted)} rows and holds {len(rows)} that are apart",
        "packing",
    )
    if not there:
        return
    pairs = list(zip(rows, wanted, strict=True))
    served = _count(pairs, lambda row, good: _begins(row, good, job))
    yield check(
        "prompt-as-served",
        served == len(pairs),
        f"{served} of {len(pairs)} rows begin with the tokens that are served",
        TEMPLATE,
    )
    specials = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    twice = _count(pairs, lambda row, _: row.ids[0] in specials and row.ids[:1] == row.ids[1:2])
    yield check(
        "one-start-token", twice == 0, f"{twice} of {len(pairs)} rows begin with two start tokens", TEMPLATE
    )
    if not job.grpo:
        yield from _of_answers(job, pairs, tokenizer)
        yield from _of_masks(job, trial, pairs, tokenizer)
    if job.dpo:
        yield from _of_pairs(trial)


def _of_answers(job: JobSpec, pairs: list[Pair], tokenizer: Any) -> Iterator[Check]:
    needed = [len(good.prompt) + len(good.answer) for _, good in pairs]
    fit = sum(tokens <= job.max_tokens_per_row for tokens in needed)
    yield check(
        "answer-fits",
        fit == len(pairs),
        f"{fit} of {len(pairs)} answers fit into {job.max_tokens_per_row} tokens with their prompts; the longest "
        f"needs {max(needed)}",
        "max_tokens_per_row",
    )
    given = _count(pairs, lambda _, good: _told(tokenizer, good) == good.row["answer"].strip())
    yield check(
        "answer-as-given",
        given == len(pairs),
        f"decoded back, {given} of {len(pairs)} answers are the rows' own",
        TEMPLATE,
    )


def _of_masks(job: JobSpec, trial: Trial, pairs: list[Pair], tokenizer: Any) -> Iterator[Check]:
    rendered = render(tokenizer, [good.row for _, good in pairs])
    marked = all(
        sum(row.answer[len(good.prompt) :]) >= len(good.answer)
        for row, (_, good) in zip(rendered, pairs, strict=True)
    )
    whole = all(len(good.prompt) + len(good.answer) <= job.max_tokens_per_row for _, good in pairs)
    blame = ("masking" if marked else TEMPLATE) if whole else "max_tokens_per_row"
    learnt = _count(pairs, _learnt)
    supervised = sum(len(_supervised(row)) for row, _ in pairs)
    yield check(
        "answer-supervised",
        learnt == len(pairs),
        f"{learnt} of {len(pairs)} rows teach all of their answer; {supervised} tokens are supervised, answers have "
        f"{sum(len(good.answer) for _, good in pairs)}",
        blame,
    )
    ended = _count(pairs, lambda row, good: good.ends and tokenizer.eos_token_id in _supervised(row)[-2:])
    yield check(
        "end-of-turn-supervised",
        ended == len(pairs),
        f"{ended} of {len(pairs)} rows teach the end of their turn",
        blame if all(good.ends for _, good in pairs) else TEMPLATE,
    )
    beside = sum(
        label not in (IGNORED, wanted)
        for row, good in pairs
        for label, wanted in zip(row.labels, _labels(row, good, job), strict=True)
    )
    yield check(
        "nothing-else-supervised",
        beside == 0 and trial.pads_supervised == 0,
        f"{beside} tokens are supervised that {job.masking} leaves out, and {trial.pads_supervised} pads",
        "masking",
    )
    if job.recipe == "sft":
        yield check(
            "loss-as-defined",
            abs(trial.loss - trial.loss_alone) <= LOSS_TOLERANCE * max(1.0, trial.loss_alone),
            f"the trainer's loss on its batch is {trial.loss:.4f}; of the same rows one by one, each token predicted "
            f"from those before it, {trial.loss_alone:.4f}",
            "packing" if job.packing else "masking",
        )


def _count(pairs: list[Pair], holds: Callable[[Document, Expected], bool]) -> int:
    return sum(holds(row, good) for row, good in pairs)


def _begins(row: Document, good: Expected, job: JobSpec) -> bool:
    room = job.max_tokens_per_row - (job.grpo.max_new_tokens if job.grpo else 0)
    # Of a prompt that is too long, the end is kept where an answer is to follow, the beginning where one is given.
    prompt = good.prompt[-room:] if job.grpo else good.prompt[:room]
    return row.ids[: len(prompt)] == prompt


def _told(tokenizer: Any, good: Expected) -> str:
    """The answer's tokens as text."""
    text: str = tokenizer.decode(good.answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text.strip()


def _supervised(row: Document) -> list[int]:
    return [label for label in row.labels if label != IGNORED]


def _learnt(row: Document, good: Expected) -> bool:
    """Whether the loss is taken on every token of the answer, at its place."""
    start = len(good.prompt)
    return row.labels[start : start + len(good.answer)] == good.answer


def _labels(row: Document, good: Expected, job: JobSpec) -> list[int]:
    """What the row's labels should be, as far as the row reaches; what is beyond should not be there."""
    labels = good.labels(job.masking, len(row.labels))
    return [*labels, *[IGNORED] * (len(row.labels) - len(labels))]


def _of_pairs(trial: Trial) -> Iterator[Check]:
    half = len(trial.documents) // 2
    both = [
        list(zip(rows[:half], rows[half:], strict=True))
        for rows in (
            [row.ids for row in trial.documents],
            [good.answer for good in trial.expected],
            [
                len(_supervised(row)) < len(good.answer)
                for row, good in zip(trial.documents, trial.expected, strict=True)
            ],
        )
    ]
    differ, given, uneven = (sum(one != other for one, other in sides) for sides in both)
    yield check(
        "pairs-differ",
        differ == half,
        f"{differ} of {half} pairs differ in the batch, {given} as given",
        "max_tokens_per_row" if given == half else DATA,
    )
    yield check(
        "pairs-cut-alike",
        uneven == 0,
        f"{uneven} of {half} pairs are cut on one side only",
        "max_tokens_per_row",
    )
    yield check(
        "starts-at-the-reference",
        abs(trial.loss - math.log(2)) <= LOSS_TOLERANCE,
        f"the first loss is {trial.loss:.4f}; where policy and reference are the same, it is {math.log(2):.4f}",
        "dpo",
    )
