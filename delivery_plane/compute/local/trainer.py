"""One live training job in its own process: trains, is probed, waits for the word, saves. Judges nothing."""

import errno
import fcntl
import json
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
from delivery_plane.compute.plane import JobSpec, Resume, TrainStatus
from delivery_plane.compute.recipes.build import build_trainer, start_model
from delivery_plane.compute.recipes.governed import Used
from delivery_plane.delivery import LARGEST_NUMBER
from delivery_plane.errors import ComputeFault
from delivery_plane.facts import CheckpointSaved, PolicyObserved, PreferenceObserved, ProbeObserved
from delivery_plane.rows import read_rows

LOCK_SECONDS = 10.0
"""How long a new trainer waits for an older one to let go of the job's folder."""


def run(channel: Channel, job: JobSpec, resume: Resume | None, device_name: str) -> TrainStatus:
    """Train `job`, from `resume` if given; facts go up the channel, "go" or "stop" comes back at each probe."""
    spent = Spent(resume)
    with _only_trainer(job.job_folder):
        _check_inputs(job)
        device = use_device(device_name)
        tokenizer = load_tokenizer(job.base_path)
        start = start_model(job, device)
        with spent.probing():
            probe = Probe(job, read_rows(job.probe_path), tokenizer, device)
            base = probe.measure(load_base(job.base_path, device) if job.parents else start)
        if not math.isfinite(base.loss):
            raise ComputeFault(f"{job.base_path}: the base's own loss is not finite")
        gate = _Gate(channel, job, probe, base, Distance(job, start), spent)
        fault = planted(job.fault, job.seed)
        trainer = build_trainer(job, start, tokenizer, read_rows(job.dataset_path), fault, [gate])
        gate.trainer = trainer
        drop_after(job, resume.step if resume else 0)
        checkpoint = require_complete(job, resume.step) if resume else None
        if checkpoint:
            trainer.used.restore(checkpoint)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if gate.status == "completed" and trainer.state.global_step < job.steps:
            raise ComputeFault(f"job {job.job_id}: ended by itself after {trainer.state.global_step} steps")
        print(spent.line(), flush=True)
        return gate.status


class Spent:
    """Time a job took: by the clock over all its resumes, of the processor in this run of it."""

    def __init__(self, resume: Resume | None) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()
        self._before = resume.device_seconds if resume else 0.0
        self.probe_seconds = resume.probe_seconds if resume else 0.0
        self._probe_cpu = 0.0

    @property
    def device_seconds(self) -> float:
        """So far, probes included."""
        return self._before + time.perf_counter() - self._started

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Count what happens within as probing."""
        clock, cpu = time.perf_counter(), time.process_time()
        yield
        self.probe_seconds += time.perf_counter() - clock
        self._probe_cpu += time.process_time() - cpu

    def line(self) -> str:
        """What the log says of it at the end; a benchmark reads it."""
        cpu = time.process_time() - self._cpu
        return json.dumps({"cpu_seconds": cpu, "probe_cpu_seconds": self._probe_cpu})


class _Gate(TrainerCallback):
    """Probes at the job's probe steps, reports, waits for the word, and has a checkpoint saved and marked."""

    trainer: Any

    def __init__(
        self,
        channel: Channel,
        job: JobSpec,
        probe: Probe,
        base: ProbeResult,
        distance: Distance,
        spent: Spent,
    ) -> None:
        self.status: TrainStatus = "completed"
        self._channel = channel
        self._job = job
        self._probe = probe
        self._base = base
        self._distance = distance
        self._spent = spent
        self._moved = 0.0
        self._steps = frozenset(job.probe_steps())
        self._generates = frozenset(job.generation_steps())

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
        self.trainer.used.save(folder)
        self.trainer.fault.save(folder)
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
        model, used = self.trainer.model, self.trainer.used
        with self._spent.probing():
            found = self._probe.measure(model)
            finite = _finite(found.loss) is not None
            # What is not finite cannot be decoded.
            written = self._probe.generate(model) if finite and step in self._generates else None
            # A record holds finite numbers only: weights that are not finite leave the last distance standing.
            distance = _finite(self._distance.of(model))
        self._moved = self._moved if distance is None else distance
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
            tokens=used.tokens,
            supervised_tokens=used.supervised_tokens,
            device_seconds=self._spent.device_seconds,
            probe_seconds=self._spent.probe_seconds,
            peak_memory_bytes=peak_memory_bytes(next(model.parameters()).device),
            probe_prompt_loss=_finite(found.prompt_loss),
            generated_items=written.items if written else 0,
            generated_correct=written.correct if written else 0,
            end_of_turn_share=written.ended_share if written else None,
            generated_tokens_mean=written.tokens_mean if written else None,
            consumed_rows=used.rows,
            distinct_rows=used.distinct_rows,
            consumed_digest=used.digest,
            consumed_sample=used.sample,
            policy=_policy(used, logs) if self._job.grpo else None,
            preference=_preference(logs) if self._job.dpo else None,
        )


def _policy(used: Used, logs: dict[str, float]) -> PolicyObserved:
    return PolicyObserved(
        rollouts=used.rollouts,
        policy_versions=used.policy_versions,
        generated_tokens=used.generated_tokens,
        reward_mean=_finite(logs.get("reward")),
        reward_std=_finite(logs.get("reward_std")),
        zero_std_share=_finite(logs.get("frac_reward_zero_std")),
        clipped_share=_finite(logs.get("completions/clipped_ratio")),
    )


def _preference(logs: dict[str, float]) -> PreferenceObserved:
    return PreferenceObserved(
        accuracy=_finite(logs.get("rewards/accuracies")),
        margin=_finite(logs.get("rewards/margins")),
        chosen_shift=_finite(logs.get("rewards/chosen")),
    )


def _finite(value: float | None) -> float | None:
    """The number, or None for what a record cannot hold: no number, an infinite one, one beyond all sense."""
    return float(value) if value is not None and abs(value) <= LARGEST_NUMBER else None


def _check_inputs(job: JobSpec) -> None:
    """Raise ComputeFault unless base, rows, probe and start are the ones the job names."""
    for what, found, planned in (
        ("base", model_digest(job.base_path), job.base_digest),
        ("rows", file_digest(job.dataset_path), job.dataset_digest),
        ("probe", file_digest(job.probe_path), job.probe_digest),
        ("start", weights_digest(job.parents[-1]) if job.parents else None, job.parent_digest),
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
