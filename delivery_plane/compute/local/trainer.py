"""One live training job in its own process: trains, is probed, waits for the word, saves. Judges nothing."""

import errno
import fcntl
import math
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from transformers import TrainerCallback

from delivery_plane.compute.faults import planted
from delivery_plane.compute.local.checkpoints import drop_after, keep_last, mark_complete, require_complete
from delivery_plane.compute.local.children import Channel
from delivery_plane.compute.local.digests import file_digest, model_digest, weights_digest
from delivery_plane.compute.local.models import load_base, load_tokenizer, peak_memory_bytes, use_device
from delivery_plane.compute.local.probe import Distance, Probe, ProbeResult
from delivery_plane.compute.local.tokens import render
from delivery_plane.compute.plane import JobSpec, Resume, TrainStatus
from delivery_plane.compute.recipes.sft import Sft, adapted, sft_trainer
from delivery_plane.delivery import LARGEST_NUMBER
from delivery_plane.errors import ComputeFault
from delivery_plane.facts import CheckpointSaved, ProbeObserved
from delivery_plane.rows import read_rows

LOCK_SECONDS = 10.0
"""How long a new trainer waits for an older one to let go of the job's folder."""

NOTHING_YET = Resume(step=0, tokens=0, supervised_tokens=0, device_seconds=0.0, probe_seconds=0.0)


def run(channel: Channel, job: JobSpec, resume: Resume | None, device_name: str) -> TrainStatus:
    """Train `job`, from `resume` if given; facts go up the channel, "go" or "stop" comes back at each probe."""
    started = time.perf_counter()
    with _only_trainer(job.job_folder):
        _check_inputs(job)
        device = use_device(device_name)
        tokenizer = load_tokenizer(job.base_path)
        model = load_base(job.base_path, device)
        probe = Probe(render(tokenizer, read_rows(job.probe_path)), tokenizer, len(tokenizer), device)
        probing = time.perf_counter()
        base_probe = probe.measure(model)
        if not math.isfinite(base_probe.loss):
            raise ComputeFault(f"{job.base_path}: the base's own loss is not finite")
        probe_seconds = time.perf_counter() - probing
        model = adapted(job, model)
        gate = _Gate(channel, job, resume or NOTHING_YET, probe, base_probe, Distance(model), started)
        gate.probe_seconds += probe_seconds
        rows = planted(job.fault, job.seed).rows(read_rows(job.dataset_path))
        rendered = [row.cut(job.max_tokens_per_row) for row in render(tokenizer, rows)]
        trainer = sft_trainer(job, model, tokenizer, rendered, gate)
        gate.trainer = trainer
        drop_after(job, resume.step if resume else 0)
        checkpoint = require_complete(job, resume.step) if resume else None
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return gate.status


class _Gate(TrainerCallback):
    """Probes at the job's probe steps, reports, waits for the word, and has a checkpoint saved and marked."""

    trainer: Sft

    def __init__(
        self,
        channel: Channel,
        job: JobSpec,
        before: Resume,
        probe: Probe,
        base: ProbeResult,
        distance: Distance,
        started: float,
    ) -> None:
        self.status: TrainStatus = "completed"
        self.probe_seconds = before.probe_seconds
        self._channel = channel
        self._job = job
        self._before = before
        self._probe = probe
        self._base = base
        self._distance = distance
        self._started = started
        self._moved = 0.0
        self._steps = frozenset(job.probe_steps())

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        # The loss since the last probe is known only once it is logged; the probe follows in on_log.
        if state.global_step in self._steps:
            control.should_log = True

    def on_log(self, _args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        if state.global_step not in self._steps or "loss" not in logs:
            return
        observed = self._observe(state.global_step, logs)
        self._channel.send(observed)
        answer = self._channel.receive()
        if observed.train_loss is None or observed.probe_loss is None:
            self.status = "not_finite"
        elif answer == "stop":
            self.status = "stopped"
        control.should_training_stop = control.should_training_stop or self.status != "completed"
        # Weights that are not finite are no checkpoint to go on from.
        control.should_save = self.status != "not_finite"

    def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        step = state.global_step
        folder = self._job.checkpoint_path(step)
        mark_complete(self._job, step)
        keep_last(self._job)
        saved = CheckpointSaved(
            job_id=self._job.job_id,
            step=step,
            digest=weights_digest(folder),
            bytes=sum(path.stat().st_size for path in folder.iterdir()),
        )
        self._channel.send(saved)

    def _observe(self, step: int, logs: dict[str, float]) -> ProbeObserved:
        model = self.trainer.model
        probing = time.perf_counter()
        found = self._probe.measure(model)
        distance = self._distance.of(model)
        # A record holds finite numbers only: weights that are not finite leave the last distance standing.
        self._moved = self._moved if _finite(distance) is None else distance
        now = time.perf_counter()
        self.probe_seconds += now - probing
        pairs = list(zip(found.correct, self._base.correct, strict=True))
        return ProbeObserved(
            job_id=self._job.job_id,
            step=step,
            budget_fraction=step / self._job.steps,
            train_loss=_finite(logs["loss"]),
            grad_norm=_finite(logs.get("grad_norm")),
            learning_rate=_finite(logs.get("learning_rate")),
            probe_items=len(pairs),
            probe_loss=_finite(found.loss),
            base_probe_loss=self._base.loss,
            probe_correct=sum(found.correct),
            base_correct=sum(self._base.correct),
            wins=sum(mine and not base for mine, base in pairs),
            losses=sum(base and not mine for mine, base in pairs),
            parameter_delta_norm=self._moved,
            tokens=self._before.tokens + self.trainer.tokens,
            supervised_tokens=self._before.supervised_tokens + self.trainer.supervised_tokens,
            device_seconds=self._before.device_seconds + now - self._started,
            probe_seconds=self.probe_seconds,
            peak_memory_bytes=peak_memory_bytes(next(model.parameters()).device),
        )


def _finite(value: float | None) -> float | None:
    """The number, or None for what a record cannot hold: no number, an infinite one, one beyond all sense."""
    return float(value) if value is not None and abs(value) <= LARGEST_NUMBER else None


def _check_inputs(job: JobSpec) -> None:
    """Raise ComputeFault unless base, rows and probe are the ones the job names."""
    for what, found, planned in (
        ("base", model_digest(job.base_path), job.base_digest),
        ("rows", file_digest(job.dataset_path), job.dataset_digest),
        ("probe", file_digest(job.probe_path), job.probe_digest),
    ):
        if found != planned:
            raise ComputeFault(f"job {job.job_id}: its {what} changed since the job was planned")


@contextmanager
def _only_trainer(folder: Path) -> Iterator[None]:
    """Hold the job's folder: two trainers writing the same checkpoints would ruin both.

    Whoever starts a trainer holds the newest fence of the visit, so one that is still at work (its worker hangs,
    or was given up by the server) trains for nobody, and is ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "trainer.lock").open("a") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                # The kernel lets go of it when this process ends, however it ends.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
            if time.monotonic() > deadline:
                raise ComputeFault(f"{folder}: another trainer is at work there")
            _end_holder(file)
            time.sleep(0.05)
        yield


def _end_holder(file: IO[str]) -> None:
    """Kill the process that holds a file's lock, if it is one of this machine's."""
    # struct flock: type, whence, start, length, pid. The kernel fills in who is in the way.
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    if kind != fcntl.F_UNLCK and pid > 0:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
