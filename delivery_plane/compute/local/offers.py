"""Ways to run a job on this machine, with time, memory and price. Estimates from one timed batch; no torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from delivery_plane.compute.local.machine import memory_available_bytes
from delivery_plane.compute.local.prices import usd
from delivery_plane.compute.plane import PROBES, JobSpec
from delivery_plane.facts import ConfigRendered, Offer
from delivery_plane.rows import read_rows

START_SECONDS = 3.0
"""Load, tokenise and build the trainer in a process whose libraries are loaded already."""

STEP_FACTOR = 1.15
"""A whole run over its steps as timed: drawing batches, bookkeeping, checkpoints."""

PROBE_FACTOR = 0.4
"""A forward pass over a row against a step of training on it."""

SECOND_PROCESS_FACTOR = 2.0
"""Two processes on this machine took 0.29 s per step where one took 0.145 s: they share what one can use."""

LIBRARY_BYTES = 700_000_000
ACTIVATION_FLOATS_PER_UNIT = 40
"""Floats kept per token, layer and hidden unit for the backward pass: attention and MLP, rounded up."""


def offers(
    job: JobSpec,
    rendered: ConfigRendered,
    device: Literal["cpu", "cuda"],
    usd_left: float,
    wall_seconds_left: float,
) -> tuple[Offer, ...]:
    """One process, which this plane can run, and two, which it cannot; cheapest first."""
    kind = f"local-{device}"
    probe_rows = len(read_rows(job.probe_path))
    probing = PROBES * PROBE_FACTOR * rendered.seconds_per_step * probe_rows / job.batch_rows
    wall = START_SECONDS + STEP_FACTOR * job.steps * rendered.seconds_per_step + probing
    needed = memory_needed_bytes(job, rendered)
    available = memory_available_bytes(device)
    limits = {
        f"no {device} device found": available <= 0,
        f"needs {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are free": needed > available > 0,
        f"takes {wall:.0f} s, {wall_seconds_left:.0f} s are left": wall > wall_seconds_left,
        f"costs {usd(kind, wall):.4f} USD, {usd_left:.4f} USD are left": usd(kind, wall) > usd_left,
    }
    why_not = "; ".join(reason for reason, holds in limits.items() if holds)
    tokens_per_second = rendered.planned_tokens / wall

    def offer(gpus: int, slower: float, why: str) -> Offer:
        return Offer(
            gpu_kind=kind,
            gpus=gpus,
            precision="fp32",
            memory_bytes_needed=needed * gpus,
            memory_bytes_available=available,
            tokens_per_second=tokens_per_second / slower,
            wall_seconds=wall * slower,
            gpu_seconds=wall * slower * gpus,
            usd=usd(kind, wall * slower * gpus),
            feasible=not why,
            why_not=why,
        )

    return (
        offer(1, 1.0, why_not),
        offer(2, SECOND_PROCESS_FACTOR, "this plane trains in one process; two share the same cores"),
    )


def memory_needed_bytes(job: JobSpec, rendered: ConfigRendered) -> int:
    """Weights, gradients, optimizer, copies of the start and one pass's activations, in float32."""
    shape = _shape(job.base_path)
    row = job.max_tokens_per_row if job.packing else min(rendered.longest_row_tokens, job.max_tokens_per_row)
    tokens = job.batch_rows // job.accumulation * row * (2 if job.dpo else 1)
    per_token = ACTIVATION_FLOATS_PER_UNIT * shape["layers"] * shape["hidden"] + 4 * shape["vocabulary"]
    copies = 1 + bool(job.dpo or (job.grpo and job.grpo.beta))
    kept = copies * rendered.total_parameters if job.lora is None else 0
    floats = rendered.total_parameters + kept + 3 * rendered.trainable_parameters + tokens * per_token
    return LIBRARY_BYTES + 4 * floats


def _shape(base: Path) -> Mapping[str, int]:
    found: dict[str, Any] = json.loads((base / "config.json").read_text(encoding="utf-8"))
    found = found.get("text_config", found)
    return {
        "layers": int(found.get("num_hidden_layers") or found.get("n_layer") or 12),
        "hidden": int(found.get("hidden_size") or found.get("n_embd") or 1024),
        "vocabulary": int(found.get("vocab_size") or 50_000),
    }
