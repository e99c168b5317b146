"""Ten jobs killed at random moments and resumed as a stage does: every curve and weight is the uninterrupted run's."""

import functools
import os
import random
import signal
import threading

import pytest
from test_compute_recipes import always, colours, from_, games, on, warmed_up
from test_compute_tiny import job, plane
from test_compute_train import resume_from, trained, trainer_pid

from delivery_plane.compute.plane import JobSpec, Observation, Resume
from delivery_plane.errors import Interrupted
from delivery_plane.facts import CheckpointSaved, ProbeObserved
from delivery_plane.hyperparameters import DpoSettings, GrpoSettings, LoraSettings

TIMELESS = {"job_id", "device_seconds", "probe_seconds", "peak_memory_bytes"}


def spec(kind: str, name: str) -> JobSpec:
    """A job of several epochs over few rows, so that a new epoch's order is part of what must be found again."""
    lora = LoraSettings(rank=4, alpha=16, dropout=0.0 if kind.startswith("dpo") else 0.1)
    fields: dict[str, dict[str, object]] = {
        "sft": on(colours()),
        "packed": {"packing": True, "max_tokens_per_row": 100, "accumulation": 2, **on(colours())},
        "dpo": {"dpo": DpoSettings(), **on(always("c", rejected="a")), **from_(warmed_up())},
        "answers": {
            "grpo": GrpoSettings(max_new_tokens=4, group_rows=4, beta=0.02),
            "accumulation": 2,
            **on(always("d")),
            **from_(warmed_up()),
        },
        "games": {
            "grpo": GrpoSettings(environment="guess-number", max_new_tokens=3, group_rows=4),
            "max_tokens_per_row": 128,
            # So that untrained guesses differ in what they earn.
            "fault": "length-or-style-reward-hacked",
            **on(games()),
        },
    }
    recipe, _, mechanism = kind.partition(" ")
    return job(
        name,
        steps=32,
        learning_rate=0.005,
        lora=lora if mechanism == "lora" else None,
        **fields[recipe],
    )


@functools.cache
def uninterrupted(kind: str) -> tuple[list[dict[str, object]], list[str]]:
    """A run's probes and the digests of its checkpoints."""
    probes, saved, status = trained(spec(kind, f"through-{kind.replace(' ', '-')}"))
    assert status == "completed"
    return _shown(probes), [fact.digest for fact in saved]


KINDS = (
    "sft",
    "sft lora",
    "packed",
    "packed lora",
    "dpo",
    "dpo lora",
    "answers",
    "answers lora",
    "games",
    "games lora",
)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for seed, kind in enumerate(KINDS)])
def test_a_job_killed_at_a_random_moment_ends_as_if_it_never_was(kind: str, seed: int) -> None:
    probes, digests = uninterrupted(kind)
    killed = spec(kind, f"killed-{seed}")
    seen = _killed(killed, random.Random(seed))
    assert len(seen) < 2 * len(probes)
    resume = _resume(seen)
    # What came after the checkpoint it goes on from is observed once more.
    kept = len([fact for fact in seen if isinstance(fact, CheckpointSaved)])
    again, saved, status = trained(killed, resume)
    assert status == "completed"
    assert _shown(again) == probes[kept:]
    assert [fact.digest for fact in saved] == digests[kept:]
    before = [fact for fact in seen if isinstance(fact, ProbeObserved)]
    assert _shown(before) == probes[: len(before)]


def _killed(killed: JobSpec, draw: random.Random) -> list[Observation]:
    """What a job told before its trainer was killed: after so many messages, and a moment more."""
    seen: list[Observation] = []
    running = plane().train(killed, None)
    wanted = draw.randrange(1, 30)
    try:
        while True:
            seen.append(next(running))
            if len(seen) == wanted:
                pid = trainer_pid(killed)
                assert pid
                threading.Timer(draw.uniform(0, 0.3), os.kill, (pid, signal.SIGKILL)).start()
    except Interrupted:
        return seen


def _resume(seen: list[Observation]) -> Resume | None:
    """Where the ledger says that the job goes on: the probe of its last checkpoint."""
    saved = [fact.step for fact in seen if isinstance(fact, CheckpointSaved)]
    probes = {fact.step: fact for fact in seen if isinstance(fact, ProbeObserved)}
    return resume_from(probes[saved[-1]]) if saved else None


def _shown(probes: list[ProbeObserved]) -> list[dict[str, object]]:
    return [probe.model_dump(exclude=TIMELESS) for probe in probes]
