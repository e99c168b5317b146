"""The compute plane on this machine. Every model is handled in child processes; this process never loads torch."""

import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal

from delivery_plane.claims import DeployClaim
from delivery_plane.compute.faults import check_fault, fault_digest
from delivery_plane.compute.local.children import Child, call_in_child
from delivery_plane.compute.local.decoding import asked, code_version, decoding_digest
from delivery_plane.compute.local.deploy import roll_out
from delivery_plane.compute.local.digests import file_digest, reference_digest, tokenizer_digest
from delivery_plane.compute.local.machine import Device, resolve_device
from delivery_plane.compute.local.offers import offers
from delivery_plane.compute.local.prices import usd
from delivery_plane.compute.plane import (
    JobSpec,
    ModelRef,
    Observation,
    Registration,
    Resume,
    Scored,
    Suite,
    TrainStatus,
)
from delivery_plane.entry import canonical, sha256
from delivery_plane.errors import ComputeFault, attributed
from delivery_plane.facts import ConfigRendered, DeploymentObserved, Offer, PreflightChecked, ProbeObserved
from delivery_plane.files import write_whole

_PACKAGE = "delivery_plane.compute.local"


class LocalPlane:
    """A ComputePlane on this machine's CPU or GPU. `cache` keeps evaluations, `logs` what children print."""

    name = "local"

    def __init__(self, cache: Path, logs: Path, device: Device = "auto") -> None:
        self._cache = cache
        self._logs = logs
        self._device = resolve_device(device)
        self.price_book = f"local-{self._device}"

    def warm(self) -> None:
        """Start the fork server now (about ten seconds), so that the first job starts as fast as later ones."""
        libraries = ("torch", "transformers", "trl", "peft", "lm_eval")
        found = call_in_child("warming up", f"{_PACKAGE}.children:loaded_modules", libraries, logs=self._logs)
        if missing := sorted(set(libraries) - set(found)):
            raise ComputeFault(
                f"the training libraries were not loaded: {', '.join(missing)}; are they installed?"
            )

    def render(self, job: JobSpec) -> ConfigRendered:
        """See ComputePlane."""
        return self._call("rendering", "rendering:render_job", job, self._for(job))

    def offers(
        self, job: JobSpec, rendered: ConfigRendered, usd_left: float, wall_seconds_left: float
    ) -> tuple[Offer, ...]:
        """See ComputePlane."""
        return offers(job, rendered, self._for(job), usd_left, wall_seconds_left)

    def usd(self, gpu_seconds: float) -> float:
        """See ComputePlane."""
        return usd(self.price_book, gpu_seconds)

    def preflight(self, job: JobSpec) -> PreflightChecked:
        """See ComputePlane."""
        return self._call("preflight", "preflight:check_job", job, self._for(job))

    def train(
        self, job: JobSpec, resume: Resume | None
    ) -> Generator[Observation, Literal["stop"] | None, TrainStatus]:
        """See ComputePlane. Raises BadInput for an unknown fault."""
        check_fault(job.fault)
        child = Child(
            f"training {job.job_id}",
            f"{_PACKAGE}.trainer:run",
            (job, resume, self._for(job)),
            job.job_folder / "trainer.log",
            streams=True,
        )
        stop = False
        with child:
            while True:
                kind, value = child.receive()
                if kind == "result":
                    return value
                # A "stop" sent while a checkpoint was yielded holds for the next probe.
                stop = (yield value) == "stop" or stop
                if isinstance(value, ProbeObserved):
                    child.send("stop" if stop else "go")

    def evaluate(
        self, model: ModelRef, suite: Suite, cached: bool = False, fault: str | None = None
    ) -> Scored:
        """See ComputePlane. A reused result is equal in every field, device seconds included.

        Raises BadInput for an unknown fault, and for a suite that asks what is not there.
        """
        check_fault(fault)
        asked(suite)
        stored = self._stored(model, suite, fault) if cached else None
        if stored is not None and (kept := _kept(stored)):
            return kept
        scored: Scored = self._call("evaluation", "evaluate:score", model, suite, fault, self._device)
        if stored is not None:
            stored.parent.mkdir(parents=True, exist_ok=True)
            data = scored.model_dump_json().encode()
            write_whole(stored, f"{sha256(data)}\n".encode() + data)
        return scored

    def register(self, model: ModelRef, out: Path, items: Path, fault: str | None = None) -> Registration:
        """See ComputePlane. Raises BadInput for an unknown fault."""
        check_fault(fault)
        with tempfile.TemporaryDirectory(prefix="logits-") as folder:
            logits = Path(folder) / "logits.safetensors"
            written = self._call("saving", "register:write", model, out, items, logits, fault, self._device)
            return self._call(
                "loading again", "register:read_back", model, out, items, logits, written, self._device
            )

    def deploy(
        self, model: Path, stable: Path, plan: DeployClaim, items: Path, fault: str | None = None
    ) -> DeploymentObserved:
        """See ComputePlane. Raises BadInput for an unknown fault."""
        check_fault(fault)
        return roll_out(model, stable, plan, items, self._logs, fault, self._device)

    def _call(self, what: str, function: str, *args: object) -> Any:
        return call_in_child(what, f"{_PACKAGE}.{function}", *args, logs=self._logs)

    def _for(self, job: JobSpec) -> Literal["cpu", "cuda"]:
        return self._device if job.device == "auto" else job.device

    def _stored(self, model: ModelRef, suite: Suite, fault: str | None) -> Path:
        """Where an evaluation is kept: named by everything that determines it."""
        with attributed(ComputeFault, "reading what is to be evaluated"):
            named_by = {
                "model": reference_digest(model),
                "config": file_digest(model.base_path / "config.json"),
                "items": file_digest(suite.items),
                "metric": suite.metric,
                "indices": suite.indices,
                "template": tokenizer_digest(model.base_path),
                "decoding": decoding_digest(),
                "code": code_version(),
                "device": self._device,
                "fault": [fault, fault_digest(fault)],
            }
        return self._cache / "evaluations" / f"{sha256(canonical(named_by))}.json"


def _kept(stored: Path) -> Scored | None:
    """The evaluation in a file; None when there is none, or not as it was written."""
    with attributed(ComputeFault, f"{stored}: stored evaluation"):
        if not stored.exists():
            return None
        digest, _, data = stored.read_bytes().partition(b"\n")
    return Scored.model_validate_json(data) if digest == sha256(data).encode() else None
