"""Trains the declared cells through the local plane and scores them; writes docs/evidence/recipes.jsonl and .md.

Takes about twenty minutes on one core, and goes on where it was broken off: a cell and seed that ran with these very
rows and settings is kept. Ends with one JSON object; exits 1 when a goal is missed.
"""

import argparse
import functools
import itertools
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from delivery_plane import __version__
from delivery_plane.compute.local.digests import model_digest
from delivery_plane.compute.local.plane import LocalPlane
from delivery_plane.compute.plane import JobSpec, ModelRef, Suite
from delivery_plane.entry import canonical, sha256
from delivery_plane.facts import ProbeObserved
from delivery_plane.files import write_whole
from delivery_plane.hyperparameters import Hyperparameters
from delivery_plane.rows import write_rows
from delivery_plane.scenario import Metric
from oracle.stats import uplift_interval
from scenarios.support_intents.generator import generate
from scenarios.tasks import arithmetic, guess, tone

ROOT = Path(__file__).parents[1]
BASE = ROOT / "scenarios" / "bases" / "micro_1" / "model"
EVIDENCE = ROOT / "docs" / "evidence"
KEPT = EVIDENCE / "recipes.jsonl"
WORK = ROOT / "build" / "bench-recipes"
SEEDS = (0, 1, 2)
GOAL_UPLIFT = 0.15
"""What supervised fine-tuning must gain in every seed. The others must beat their start."""

GAMES = guess.NUMBERS * len(guess.prompts("test"))
"""Each number of the range of each held-out prompt."""

Rows = Sequence[Any]


class Leg(NamedTuple):
    """One job: its settings, and its rows and probe rows of a seed."""

    settings: dict[str, Any]
    rows: Callable[[int], tuple[Rows, Rows]]


class Cell(NamedTuple):
    """What is shown: the last leg against the model it starts from."""

    name: str
    metric: Metric
    legs: tuple[Leg, ...]
    test: Callable[[int], Rows]


@functools.cache
def support_intents(seed: int) -> tuple[Rows, Rows, Rows]:
    """Clean public rows, probe and 500 sealed rows of one drop, sealed with a throw-away key."""
    drop = generate(seed, f"bench-recipes {seed}".encode())
    planted = {row_id for row_ids in drop.planted.values() for row_id in row_ids}
    return [row for row in drop.public if row["row_id"] not in planted], drop.probe, drop.sealed


SFT = {
    "learning_rate": 4e-3,
    "scheduler": "cosine",
    "batch_rows": 16,
    "max_tokens_per_row": 128,
    "masking": "assistant_only",
}
CELLS = (
    Cell(
        "sft support-intents",
        "exact_match",
        (Leg({**SFT, "steps": 288}, lambda seed: support_intents(seed)[:2]),),
        lambda seed: support_intents(seed)[2],
    ),
    Cell(
        "sft arithmetic",
        "exact_match",
        (
            Leg(
                {**SFT, "steps": 600},
                lambda seed: (arithmetic.draw(4000, seed, "train"), arithmetic.draw(64, seed, "probe")),
            ),
        ),
        lambda seed: arithmetic.draw(500, seed, "test"),
    ),
    Cell(
        "dpo tone",
        "courteous",
        (
            Leg(
                {**SFT, "steps": 128, "learning_rate": 2e-3},
                lambda seed: (tone.replies(2000, seed, "train"), tone.replies(64, seed, "probe")),
            ),
            Leg(
                {
                    **SFT,
                    "steps": 48,
                    "learning_rate": 1.5e-4,
                    "scheduler": "linear",
                    "batch_rows": 8,
                    "dpo": {"beta": 0.1},
                },
                lambda seed: (tone.draw(1000, seed, "train"), tone.draw(64, seed, "probe")),
            ),
        ),
        lambda seed: tone.draw(300, seed, "test"),
    ),
    Cell(
        "grpo guess",
        "game_won",
        (
            Leg(
                {**SFT, "steps": 120, "batch_rows": 32, "learning_rate": 2e-3},
                lambda seed: (guess.warm_up(2000, seed), guess.draw(64, seed, "probe")),
            ),
            Leg(
                {
                    **SFT,
                    "steps": 64,
                    "learning_rate": 4e-4,
                    "scheduler": "linear",
                    "batch_rows": 56,
                    "grpo": {"environment": "guess-number", "group_rows": 14, "max_new_tokens": 5},
                },
                lambda seed: (guess.draw(900, seed, "train"), guess.draw(64, seed, "probe")),
            ),
        ),
        lambda seed: guess.draw(GAMES, seed, "test"),
    ),
)


class Lane(NamedTuple):
    """A cell with a seed, its rows laid out; `digest` covers everything that decides its result."""

    cell: Cell
    seed: int
    jobs: tuple[JobSpec, ...]
    """As planned from the base; each but the first starts from the one before it."""
    suite: Suite
    digest: str


def lay_out(cell: Cell, seed: int) -> Lane:
    """Draw and write the rows of a cell with a seed, and plan its jobs."""
    folder = WORK / cell.name.replace(" ", "-") / str(seed)
    jobs = []
    for place, leg in enumerate(cell.legs):
        rows, probe = leg.rows(seed)
        dataset_path, probe_path = folder / f"rows-{place}.jsonl", folder / f"probe-{place}.jsonl"
        jobs.append(
            JobSpec(
                **Hyperparameters.model_validate({**leg.settings, "seed": seed}).model_dump(),
                job_id=f"{folder.parent.name}-{seed}-{place}",
                base_path=BASE,
                base_digest=base_digest(),
                dataset_path=dataset_path,
                dataset_digest=write_rows(dataset_path, rows),
                probe_path=probe_path,
                probe_digest=write_rows(probe_path, probe),
                job_folder=folder / f"job-{place}",
                mechanism="full",
                metric=cell.metric,
                device="cpu",
            )
        )
    suite = Suite(items=folder / "test.jsonl", metric=cell.metric)
    decides = [job.digest for job in jobs], cell.metric, write_rows(suite.items, cell.test(seed))
    return Lane(cell, seed, tuple(jobs), suite, sha256(canonical(decides)))


@functools.cache
def base_digest() -> str:
    """Of the embedded base."""
    return model_digest(BASE)


def measure(plane: LocalPlane, lane: Lane) -> dict[str, Any]:
    """Train a lane's jobs one after another, and score the base and every job on the same items."""
    begun = time.monotonic()
    model = ModelRef(base_path=BASE)
    scored, legs, parent_digest = [plane.evaluate(model, lane.suite)], [], None
    for planned in lane.jobs:
        job = planned.model_copy(update={"parents": model.checkpoints, "parent_digest": parent_digest})
        last, parent_digest = train(plane, job)
        model = ModelRef(base_path=BASE, parents=job.parents, checkpoint_path=job.checkpoint_path(job.steps))
        scored.append(plane.evaluate(model, lane.suite))
        seconds = round(last.device_seconds, 1)
        legs.append(
            {"recipe": job.recipe, "steps": job.steps, "tokens": last.tokens, "device_seconds": seconds}
        )
    base, start, tuned = scored[0], scored[-2], scored[-1]
    wins, losses, ties = tuned.against(start)
    return {
        "cell": lane.cell.name,
        "seed": lane.seed,
        "digest": lane.digest,
        "platform_version": __version__,
        "python": platform.python_version(),
        "n": len(tuned.correct),
        "base": sum(base.correct),
        "start": sum(start.correct),
        "tuned": sum(tuned.correct),
        "wins": wins,
        "losses": losses,
        "ties": ties,
        "jobs": legs,
        "wall_seconds": round(time.monotonic() - begun, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def train(plane: LocalPlane, job: JobSpec) -> tuple[ProbeObserved, str]:
    """Run a job to its end: what was observed last, and its last checkpoint's digest. Raises SystemExit otherwise."""
    shutil.rmtree(job.job_folder, ignore_errors=True)
    work = plane.train(job, None)
    last, digest = None, None
    while True:
        try:
            seen = next(work)
        except StopIteration as end:
            if end.value != "completed" or last is None or digest is None:
                raise SystemExit(f"{job.job_id}: {end.value}; its log lies in {job.job_folder}") from None
            return last, digest
        if isinstance(seen, ProbeObserved):
            last = seen
            say(f"{job.job_id}: step {seen.step} of {job.steps}, loss {seen.train_loss}")
        else:
            digest = seen.digest


def interval(results: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """95% interval of the paired uplift over all items of these results."""
    wins, losses, ties = (sum(found[name] for found in results) for name in ("wins", "losses", "ties"))
    return uplift_interval(wins, losses, ties)


def uplift(found: dict[str, Any]) -> float:
    """Of one result, a share."""
    return float((found["wins"] - found["losses"]) / found["n"])


def reached(cell: Cell, results: Sequence[dict[str, Any]]) -> bool:
    """Whether a cell reached its goal in these seeds."""
    if len(cell.legs) == 1:
        return all(uplift(found) >= GOAL_UPLIFT for found in results)
    return all(uplift(found) > 0 for found in results) and interval(results)[0] > 0


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


PAGE = """# Recipes on the embedded base

`make bench-recipes` draws rows, trains them through the local plane and scores greedy answers on held-out items by
program. Platform {version}, Python {python}, one thread on {cores} shared cores. Base: micro-1 (465,696 parameters).
Every job trains full weights. Uplift: the last job against the model it starts from, paired on the same items, with
Tango's 95% interval. *All seeds* adds up the pairs of the seeds, whose rows and items are drawn anew.

- **sft support-intents**: the scenario's clean rows; judged by the intents of its sealed rows, as text.
- **sft arithmetic**: sums and differences of two or three numbers, drawn by reasoning-gym; judged by the number.
- **dpo tone**: which of two replies is better, told by annotators of whom one in ten errs, after SFT on a team's
  replies, good and curt; judged by the house rules, a program, on what is generated.
- **grpo guess**: to find a number in three turns, told higher or lower, after SFT on games of players without a
  strategy; rewarded and judged by the game, judged on prompts that no job has seen. The ranges of numbers are the same:
  this base names the numbers of other ranges badly, and that would be measured instead.

Goals: SFT up by at least 15 points in every seed; DPO and GRPO better than their start in every seed, and the lower
end of all seeds above 0.

Games on one prompt share their first guess, and seeds share some of their prompts, so the interval of `grpo guess` is
narrower than that of as many unrelated items would be. No reward model takes part anywhere.

## Scores

{scores}

```
{bars}
```

## What it took

Tokens are the last job's, prompts included. Seconds are the device seconds of each job, loading and probes included,
and the wall time of all of it with its evaluations. Load is the machine's at the end: what is above its cores is work
that waits, other programs' included.

{costs}
"""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(str(value) for value in line)} |" for line in lines)


def page(results: Sequence[tuple[Cell, list[dict[str, Any]]]]) -> str:
    """The evidence, in words and figures."""
    scores, bars, costs = [], [], []
    for cell, found in results:
        for one in [*found, *([total(found)] if len(found) > 1 else [])]:
            low, high = interval([one])
            base, start, tuned = (one[name] / one["n"] for name in ("base", "start", "tuned"))
            pairs = f"{one['wins']} / {one['losses']} / {one['ties']}"
            shares = (f"{share:.3f}" for share in (base, start, tuned))
            span = f"{low:+.3f} to {high:+.3f}"
            scores.append((cell.name, one["seed"], one["n"], *shares, pairs, f"{uplift(one):+.3f}", span))
        bars += [f"{cell.name:20} start {bar(start)}", f"{'':20} tuned {bar(tuned)}"]
        costs += [
            (cell.name, one["seed"], " + ".join(f"{job['recipe']} {job['steps']}" for job in one["jobs"]),
             f"{one['jobs'][-1]['tokens']:,}", " + ".join(str(job["device_seconds"]) for job in one["jobs"]),
             one["wall_seconds"], one["load"])
            for one in found
        ]  # fmt: skip
    return PAGE.format(
        version=__version__,
        python=platform.python_version(),
        cores=os.cpu_count(),
        scores=table(
            ("cell", "seed", "n", "base", "start", "tuned", "wins / losses / ties", "uplift", "95% interval"),
            scores,
        ),
        bars="\n".join(bars),
        costs=table(("cell", "seed", "steps", "tokens", "device seconds", "wall seconds", "load"), costs),
    )


def total(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts of several seeds together."""
    names = ("n", "base", "start", "tuned", "wins", "losses", "ties")
    return {"seed": "all seeds", **{name: sum(found[name] for found in results) for name in names}}


def bar(share: float) -> str:
    """A share as a bar of forty characters at most."""
    return f"{'█' * round(40 * share):40} {share:.1%}"


def keep(results: Iterable[dict[str, Any]]) -> None:
    """One line for each result."""
    write_whole(KEPT, "".join(json.dumps(found) + "\n" for found in results).encode())


def main() -> int:
    """Run what is not kept yet, then write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="run every cell again, the kept ones too")
    again = parser.parse_args().again
    lines = KEPT.read_text().splitlines() if KEPT.is_file() and not again else []
    kept = {found["digest"]: found for found in map(json.loads, lines)}
    plane = LocalPlane(cache=WORK / "cache", logs=WORK / "logs", device="cpu")
    results: list[tuple[Cell, list[dict[str, Any]]]] = [(cell, []) for cell in CELLS]
    for (cell, found), seed in itertools.product(results, SEEDS):
        lane = lay_out(cell, seed)
        one = kept[lane.digest] = kept.get(lane.digest) or measure(plane, lane)
        found.append(one)
        keep(kept.values())
        low, high = interval([one])
        say(
            f"{cell.name}, seed {seed}: {one['start']} to {one['tuned']} of {one['n']},"
            f" uplift {uplift(one):+.3f} ({low:+.3f} to {high:+.3f}), {one['wall_seconds']} s"
        )
    keep(one for _, found in results for one in found)  # and nothing of other settings
    write_whole(EVIDENCE / "recipes.md", page(results).encode())
    missed = [cell.name for cell, found in results if not reached(cell, found)]
    uplifts = {cell.name: [round(uplift(one), 4) for one in found] for cell, found in results}
    print(json.dumps({"bench": "recipes", "uplift": uplifts, "missed": missed, "ok": not missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
