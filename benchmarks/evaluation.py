"""The plane's evaluation against plain lm-eval: same model, same task, same batch size, one run.

Every run is a process of its own, forked from a server that has loaded the libraries, and its whole time counts:
loading the model, rendering, answering, judging. Plain lm-eval is `simple_evaluate`, spared its index of thousands of
tasks, which takes most of a minute; and the same also without the report on the machine that it adds to each result.
Goals are held against the faster of the two. Ends with one JSON object; exits 1 when a goal is missed.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from delivery_plane.compute.local.children import call_in_child
from delivery_plane.compute.local.decoding import BATCH
from delivery_plane.compute.local.plane import LocalPlane
from delivery_plane.compute.plane import ModelRef, Suite
from delivery_plane.rows import write_rows
from delivery_plane.scenario import Row
from scenarios.bases.micro_1.skills import sums

ROOT = Path(__file__).parents[1]
BASE = ROOT / "scenarios" / "bases" / "micro_1" / "model"
EVIDENCE = ROOT / "docs" / "evidence" / "evaluation.md"
ITEMS = 400
ROUNDS = 4
"""Each runs every way twice, there and back, so that a machine that gets slower favours none."""

GOAL_COLD = 0.95
GOAL_CACHED = 10.0


def rows() -> list[Row]:
    """Sums up to twenty, which the base can partly do."""
    draw = random.Random(20)
    talks = [sums(draw) for _ in range(ITEMS)]
    return [
        {
            "row_id": f"sum-{i}",
            "prompt": talk[0]["content"],
            "answer": talk[1]["content"],
            "licence": "cc0-1.0",
            "source": "drawn",
        }
        for i, talk in enumerate(talks)
    ]


def plain(suite: Suite, with_report: bool) -> list[tuple[str, bool]]:
    """Answers and judgements of plain lm-eval. Runs in a child."""
    import torch
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from delivery_plane.compute.local.evaluate import load_task

    torch.set_num_threads(1)
    if not with_report:
        evaluator.add_env_info = lambda _results: None
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).eval()
    results = evaluator.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=BATCH, device="cpu"),
        tasks=[load_task(suite, tokenizer)],
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=True,
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = sorted(results["samples"][suite.metric], key=lambda sample: sample["doc_id"])
    return [(sample["filtered_resps"][0][0], sample["right"] == 1.0) for sample in samples]


def measure(folder: Path) -> dict[str, Any]:
    """Seconds of every way, run by run, and whether all agree on every item."""
    suite = Suite(items=folder / "items.jsonl")
    write_rows(suite.items, rows())
    plane = LocalPlane(cache=folder / "cache", logs=folder / "logs", device="cpu")
    base = ModelRef(base_path=BASE)

    def ours(cached: bool) -> list[tuple[str, bool]]:
        found = plane.evaluate(base, suite, cached=cached)
        return list(zip(found.answers, found.correct, strict=True))

    def theirs(with_report: bool) -> list[tuple[str, bool]]:
        return call_in_child("plain lm-eval", "evaluation:plain", suite, with_report, logs=folder / "logs")

    ways: dict[str, Callable[[], list[tuple[str, bool]]]] = {
        "cold": lambda: ours(cached=False),
        "plain": lambda: theirs(with_report=True),
        "plain_without_report": lambda: theirs(with_report=False),
        "cached": lambda: ours(cached=True),
    }
    answers = {name: way() for name, way in ways.items()}  # warms up, and fills the cache
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name in (*ways, *reversed(ways)):
            started = time.perf_counter()
            found = ways[name]()
            seconds[name].append(time.perf_counter() - started)
            if found != answers[name]:
                raise SystemExit(f"{name}: two runs answered differently")
    return {
        "seconds": seconds,
        "identical": all(found == answers["plain"] for found in answers.values()),
        "right": sum(is_right for _, is_right in answers["plain"]),
    }


def evidence(result: dict[str, Any], seconds: dict[str, list[float]]) -> str:
    """The evidence file's text."""
    lines = [
        "# Evaluation against plain lm-eval",
        "",
        "Written by `benchmarks/evaluation.py --evidence`; `make bench-eval` measures anew and fails on a miss.",
        "Each time is a whole run: a process forked from one that has loaded the libraries loads the embedded base,",
        f"answers {result['items']} sums greedily in batches of {BATCH} and judges them.",
        f"Python {platform.python_version()}, lm_eval {version('lm_eval')}, transformers {version('transformers')}, "
        f"torch {version('torch')}, one thread, {os.cpu_count()} cores shared with other work.",
        "",
        "| way | median s | fastest | slowest | runs |",
        "|---|---|---|---|---|",
        *(
            f"| {name.replace('_', ' ')} | {statistics.median(taken):.3f} | {min(taken):.3f} | {max(taken):.3f} "
            f"| {len(taken)} |"
            for name, taken in seconds.items()
        ),
        "",
        f"- Answers and judgements of all ways, item by item: {'identical' if result['identical'] else 'DIFFERENT'} "
        f"({result['right']} of {result['items']} right).",
        f"- Cold: {result['cold_ratio']} times the throughput of plain lm-eval (goal {GOAL_COLD}).",
        f"- The base's result from the cache: {result['cached_ratio']} times as fast as plain lm-eval's "
        f"(goal {GOAL_CACHED:g}).",
        "- `plain` is `simple_evaluate` without its index of tasks; `plain without report` also leaves out its report",
        "  on the machine. The ratios are to the faster of the two.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, say, and hold against the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evidence", action="store_true", help=f"write {EVIDENCE.relative_to(ROOT)}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-eval-") as folder:
        found = measure(Path(folder))
    medians = {name: statistics.median(taken) for name, taken in found["seconds"].items()}
    faster = min(medians["plain"], medians["plain_without_report"])
    result = {
        "benchmark": "evaluation",
        "items": ITEMS,
        "runs_each": 2 * ROUNDS,
        "right": found["right"],
        "identical": found["identical"],
        **{f"{name}_seconds": round(median, 4) for name, median in medians.items()},
        "cold_ratio": round(faster / medians["cold"], 2),
        "cached_ratio": round(faster / medians["cached"], 1),
        "goal_cold": GOAL_COLD,
        "goal_cached": GOAL_CACHED,
    }
    result["met"] = (
        result["identical"] and result["cold_ratio"] >= GOAL_COLD and result["cached_ratio"] >= GOAL_CACHED
    )
    if options.evidence:
        EVIDENCE.write_text(evidence(result, found["seconds"]), encoding="utf-8")
    print(json.dumps(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
