"""Processor time of a governed job over the same bare TRL job, in pairs, on the embedded base. Judges no model.

The governed side is `LocalPlane.train` with probes, checkpoints, every fact appended to a ledger under a fence, and
the detector's looks; the bare side is a plain script with the same settings and rows, which saves as often. Both run
in a child of the same warm process, and each measures itself from the first line of the job to its last: loading
libraries and starting a process are in neither. Probing is measured apart, taken off, and printed as its own share.

Goes on where it was broken off. Ends with one JSON object; exits 1 when a goal is missed.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from scipy.stats import binom

from delivery_plane import __version__
from delivery_plane.compute.local.children import call_in_child
from delivery_plane.compute.local.digests import file_digest, model_digest, weights_digest
from delivery_plane.compute.local.plane import LocalPlane
from delivery_plane.compute.plane import PROBES, JobSpec
from delivery_plane.entry import canonical, sha256
from delivery_plane.facts import ProbeObserved
from delivery_plane.rows import write_rows
from delivery_plane.settings import Home
from oracle import detector
from scenarios.support_intents.generator import generate
from workflows.platform import open_platform

ROOT = Path(__file__).parents[1]
BASE = ROOT / "scenarios" / "bases" / "micro_1" / "model"
WORK = ROOT / "build" / "bench-overhead"
KEPT = ROOT / "docs" / "evidence" / "overhead.jsonl"

PAIRS = 12
STEPS = 480
LEAST_SECONDS = 60.0
GOAL_MEDIAN = 1.02
GOAL_UPPER = 1.04
MARGIN = 0.15
"""What the detector is told that the contract promises; it decides nothing here."""


def main() -> int:
    """Run what is missing of the pairs, each in the other order than the one before, and sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"a multiple of {PROBES}; a trial is not kept"
    )
    asked = parser.parse_args()
    if asked.steps % PROBES:
        parser.error(f"--steps: a bare script saves at equal distances; take a multiple of {PROBES}")
    evidence = KEPT if asked.steps == STEPS else WORK / "trial.jsonl"
    shutil.rmtree(WORK / "jobs", ignore_errors=True)
    plane = LocalPlane(WORK / "cache", WORK / "logs", "cpu")
    plane.warm()
    done = _kept(evidence)
    pairs = []
    for number in range(asked.pairs):
        spec = job(number, asked.steps)
        plan = sha256(canonical({"job": spec.digest, "version": __version__}))
        if plan not in done:
            found = pair(plane, spec, governed_first=number % 4 in (0, 3))
            done[plan] = {"plan": plan, "pair": number, **found}
            evidence.parent.mkdir(parents=True, exist_ok=True)
            with evidence.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[plan]) + "\n")
        pairs.append(done[plan])
        print(f"pair {number + 1} of {asked.pairs}: {_line(done[plan])}", flush=True)
    figures = summed(pairs)
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


def job(number: int, steps: int) -> JobSpec:
    """The job of a pair: full weights on the rows of support-intents."""
    rows, probe = WORK / "rows.jsonl", WORK / "probe.jsonl"
    if not probe.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        drop = generate(public_seed=0, sealed_key=b"overhead")
        write_rows(rows, drop.public)
        write_rows(probe, drop.probe)
    return JobSpec(
        job_id=f"pair-{number}",
        base_path=BASE,
        base_digest=model_digest(BASE),
        dataset_path=rows,
        dataset_digest=file_digest(rows),
        probe_path=probe,
        probe_digest=file_digest(probe),
        job_folder=WORK / "jobs" / f"governed-{number}",
        mechanism="full",
        device="cpu",
        learning_rate=2e-3,
        scheduler="cosine",
        batch_rows=16,
        steps=steps,
        max_tokens_per_row=256,
        masking="assistant_only",
        seed=number,
    )


def pair(plane: LocalPlane, spec: JobSpec, governed_first: bool) -> dict[str, Any]:
    """Both sides of one pair."""
    order = (governed, bare) if governed_first else (bare, governed)
    found = {name: value for side in order for name, value in side(plane, spec).items()}
    net = found["governed_seconds"] - found["probe_seconds"]
    return {
        "first": "governed" if governed_first else "bare",
        **found,
        "ratio": net / found["bare_seconds"],
        "identical": found["governed_weights"] == found["bare_weights"],
    }


def governed(plane: LocalPlane, spec: JobSpec) -> dict[str, Any]:
    """The job as a stage runs it: processor seconds of the trainer and of this process beside it."""
    home = spec.job_folder.parent / f"home-{spec.job_id}"
    ledger = open_platform(Home(home)).ledger
    started = time.process_time()
    with ledger.writing(spec.job_id) as writer:
        fence = writer.next_fence("train:1")
    for fact in plane.train(spec, None):
        ledger.fact(spec.job_id, fact, stage="train", attempt=1, fence=fence)
        if isinstance(fact, ProbeObserved):
            detector.look(fact, MARGIN)
    beside = time.process_time() - started
    cost = json.loads((spec.job_folder / "trainer.log").read_text().splitlines()[-1])
    return {
        "governed_seconds": cost["cpu_seconds"] + beside,
        "probe_seconds": cost["probe_cpu_seconds"],
        "beside_seconds": beside,
        "governed_weights": weights_digest(spec.checkpoint_path(spec.steps)),
    }


def bare(_plane: LocalPlane, spec: JobSpec) -> dict[str, Any]:
    """The same job without this platform: processor seconds of its process."""
    folder = spec.job_folder.parent / f"bare-{spec.job_id}"
    seconds = call_in_child("bare job", "overhead:plain_script", spec, folder, logs=WORK / "logs")
    return {
        "bare_seconds": seconds,
        "bare_weights": weights_digest(folder / f"checkpoint-{spec.steps}"),
    }


def plain_script(spec: JobSpec, folder: Path) -> float:
    """What one would write oneself with TRL, rows rendered at once as is fastest. Runs in a child."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    started = time.process_time()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(spec.base_path)
    rows = [json.loads(line) for line in spec.dataset_path.read_text().splitlines()]
    rendered = tokenizer.apply_chat_template(
        [
            [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["answer"]}]
            for row in rows
        ],
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    both = list(zip(rendered["input_ids"], rendered["assistant_masks"], strict=True))
    dataset = Dataset.from_dict(
        {
            "input_ids": [ids for ids, _ in both],
            "labels": [[t if m else -100 for t, m in zip(ids, mask, strict=True)] for ids, mask in both],
        }
    )
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(spec.base_path, dtype=torch.float32),
        args=SFTConfig(
            output_dir=str(folder),
            max_steps=spec.steps,
            per_device_train_batch_size=spec.batch_rows,
            learning_rate=spec.learning_rate,
            lr_scheduler_type=spec.scheduler,
            warmup_steps=round(spec.warmup_share * spec.steps),
            seed=spec.seed,
            data_seed=spec.seed,
            optim="adamw_torch_fused",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            save_steps=spec.steps // PROBES,
            save_total_limit=2,
            logging_steps=spec.steps // PROBES,
            report_to="none",
            disable_tqdm=True,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=dataset,
        processing_class=tokenizer,
    )
    trainer.train()
    return time.process_time() - started


def summed(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures and whether they meet the goals.

    The interval of the median is the exact one of the sign test, two-sided at 90% or above: the tightest pair of
    order statistics, symmetric, that covers so much whatever the ratios' distribution is.
    """
    ratios = sorted(found["ratio"] for found in pairs)
    count = len(ratios)
    cut = max((k for k in range(count // 2 + 1) if k == 0 or binom.cdf(k - 1, count, 0.5) <= 0.05), default=0)
    low, high = ratios[max(0, cut - 1)], ratios[min(count - 1, count - cut)]
    shortest = min(found["bare_seconds"] for found in pairs)
    identical = all(found["identical"] for found in pairs)
    median = statistics.median(ratios)
    return {
        "bench": "overhead",
        "pairs": count,
        "shortest_job_seconds": round(shortest, 1),
        "median_ratio": round(median, 4),
        "interval_90": [round(low, 4), round(high, 4)],
        "probe_share": round(
            statistics.median(found["probe_seconds"] / found["bare_seconds"] for found in pairs), 4
        ),
        "identical_weights": identical,
        "goal": {"median": GOAL_MEDIAN, "upper": GOAL_UPPER, "pairs": 10, "seconds": LEAST_SECONDS},
        "ok": identical
        and count >= 10
        and shortest >= LEAST_SECONDS
        and median <= GOAL_MEDIAN
        and high <= GOAL_UPPER,
    }


def _kept(evidence: Path) -> dict[str, dict[str, Any]]:
    """Pairs that were run before, by what they ran."""
    lines = evidence.read_text(encoding="utf-8").splitlines() if evidence.exists() else []
    return {found["plan"]: found for found in map(json.loads, lines)}


def _line(found: dict[str, Any]) -> str:
    return (
        f"ratio {found['ratio']:.4f}; governed {found['governed_seconds']:.1f} s of which probes "
        f"{found['probe_seconds']:.1f} s and beside the trainer {found['beside_seconds']:.2f} s; bare "
        f"{found['bare_seconds']:.1f} s; weights {'identical' if found['identical'] else 'DIFFER'}"
    )


if __name__ == "__main__":
    sys.exit(main())
