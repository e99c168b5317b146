"""What a compute plane must do, and the requests and answers it speaks. No plane is implemented here."""

from collections.abc import Generator
from pathlib import Path
from typing import Literal, Protocol

from pydantic import model_validator

from delivery_plane.claims import DeployClaim
from delivery_plane.delivery import Frozen
from delivery_plane.entry import canonical, sha256
from delivery_plane.facts import (
    CheckpointSaved,
    ConfigRendered,
    DeploymentObserved,
    Offer,
    PreflightChecked,
    ProbeObserved,
)
from delivery_plane.hyperparameters import Hyperparameters
from delivery_plane.scenario import Metric

PROBES = 16
"""A job is probed at every sixteenth of its steps."""

GENERATED_AT = (4, 8, 12, 16)
"""The sixteenths at which the probe's answers are generated, not only scored."""


def checkpoint_path(job_folder: Path, step: int) -> Path:
    """Where a job's checkpoint of a step lies."""
    return job_folder / f"checkpoint-{step}"


class ModelRef(Frozen):
    """A model to load: a base folder, or a base with a job's checkpoint (adapter or full weights).

    `parents` are the checkpoints that job started from, oldest first: each is applied, an adapter merged, before
    the next. A checkpoint of full weights replaces whatever came before it.
    """

    base_path: Path
    parents: tuple[Path, ...] = ()
    checkpoint_path: Path | None = None

    @property
    def checkpoints(self) -> tuple[Path, ...]:
        """Every checkpoint to apply to the base, in order."""
        return (*self.parents, self.checkpoint_path) if self.checkpoint_path else self.parents


class JobSpec(Hyperparameters):
    """One training job, complete. `digest` covers what determines its result, not where files lie."""

    job_id: str
    base_path: Path
    base_digest: str
    parents: tuple[Path, ...] = ()
    """Checkpoints of earlier jobs to start from, as in `ModelRef`; none: the base itself."""
    parent_digest: str | None = None
    """Digest of what `parents` come to on the base; None without parents."""
    dataset_path: Path
    dataset_digest: str
    probe_path: Path
    probe_digest: str
    job_folder: Path
    mechanism: Literal["full", "lora"]
    metric: Metric = "exact_match"
    """What the policy is rewarded for, and what the probe's generated answers are judged by."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    fault: str | None = None
    """A planted fault. It changes what runs, never what is recorded about the plan."""

    @model_validator(mode="after")
    def _mechanism_as_set(self) -> "JobSpec":
        if (self.mechanism == "lora") != (self.lora is not None):
            raise ValueError(
                f"mechanism: {self.mechanism}, but lora settings {'are' if self.lora else 'are not'} given"
            )
        if bool(self.parents) != (self.parent_digest is not None):
            raise ValueError("parent_digest: to be given exactly when there are parents")
        return self

    @property
    def digest(self) -> str:
        """Content digest of the job as planned."""
        left_out = {"job_id", "base_path", "parents", "dataset_path", "probe_path", "job_folder", "fault"}
        return sha256(canonical(self.model_dump(mode="json", exclude=left_out)))

    @property
    def start(self) -> ModelRef:
        """The model the job starts from, and preference optimisation keeps as its reference."""
        *before, last = self.parents or (None,)
        return ModelRef(base_path=self.base_path, parents=tuple(before), checkpoint_path=last)

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint saved after `step` lies; the last two are kept."""
        return checkpoint_path(self.job_folder, step)

    def probe_steps(self) -> tuple[int, ...]:
        """Steps after which the job is probed: every sixteenth of the run, the last step included."""
        return tuple(sorted({max(1, round(self.steps * k / PROBES)) for k in range(1, PROBES + 1)}))

    def generation_steps(self) -> tuple[int, ...]:
        """The probe steps after which answers are generated too, which costs far more than a loss."""
        return tuple(sorted({max(1, round(self.steps * k / PROBES)) for k in GENERATED_AT}))


class Resume(Frozen):
    """Where a job goes on: its last complete checkpoint, which knows what was trained on, and the time used by then."""

    step: int
    device_seconds: float
    probe_seconds: float


class Suite(Frozen):
    """What a model is asked: rows of a split, all or the chosen ones, and how answers are judged right."""

    items: Path
    metric: Metric = "exact_match"
    indices: tuple[int, ...] | None = None
    """Places of the rows to ask, from 0, in this order; None: all of them, in the file's order."""


class Scored(Frozen):
    """A model's answers on a suite, greedy, as right or wrong in the suite's order."""

    model_digest: str
    items_digest: str
    metric: Metric
    indices: tuple[int, ...] | None
    answers: tuple[str, ...]
    """What was answered, item by item. It holds customer text: never part of a fact."""
    correct: tuple[bool, ...]
    empty_answers: int
    generated_tokens: int
    device_seconds: float
    decoding_digest: str
    template_digest: str

    def against(self, base: "Scored") -> tuple[int, int, int]:
        """Wins, losses and ties of this model against `base` on the same items. Raises ValueError otherwise."""
        mine, theirs = ((of.items_digest, of.metric, of.indices, of.decoding_digest) for of in (self, base))
        if mine != theirs:
            raise ValueError("answers to different items, or answers judged differently, cannot be paired")
        wins = sum(t and not b for t, b in zip(self.correct, base.correct, strict=True))
        losses = sum(b and not t for t, b in zip(self.correct, base.correct, strict=True))
        return wins, losses, len(self.correct) - wins - losses


class Registration(Frozen):
    """What came of merging, saving, hashing and reloading a candidate. Fields as in `ArtifactRegistered`."""

    model_digest: str
    base_digest: str
    tensors: int
    tensors_equal_to_base: int
    files: dict[str, str]
    bytes: int
    checkpoint_digest_now: str | None
    template_equal_to_base: bool
    tokenizer_equal_to_base: bool
    reload_max_logit_difference: float
    checkpoint_max_logit_difference: float
    logit_positions: int
    finite: bool


TrainStatus = Literal["completed", "stopped", "not_finite"]
Observation = ProbeObserved | CheckpointSaved


class ComputePlane(Protocol):
    """Where compute happens. Implementations meter and execute; they never judge.

    Every method raises ComputeFault when the plane itself fails; Interrupted when a process of its was killed and
    MachineUnfit when its disk is full, which both say nothing about the work.
    """

    name: str
    price_book: str

    def render(self, job: JobSpec) -> ConfigRendered:
        """Render real rows with the job's template and mask, count, and time one batch."""
        ...

    def offers(
        self, job: JobSpec, rendered: ConfigRendered, usd_left: float, wall_seconds_left: float
    ) -> tuple[Offer, ...]:
        """Every way this plane could run the job, priced; the order is cheapest first."""
        ...

    def usd(self, gpu_seconds: float) -> float:
        """Price of device time from the plane's price book."""
        ...

    def preflight(self, job: JobSpec) -> PreflightChecked:
        """Try the job out before anything is metered: what is wrong with it, check by check."""
        ...

    def train(
        self, job: JobSpec, resume: Resume | None
    ) -> Generator[Observation, Literal["stop"] | None, TrainStatus]:
        """Run the job, yielding a probe and a checkpoint at every sixteenth.

        The trainer waits at each probe until the generator is resumed; sending "stop" there makes it
        save a checkpoint (yielded) and end. Closing the generator ends the trainer at once.
        """
        ...

    def evaluate(
        self, model: ModelRef, suite: Suite, cached: bool = False, fault: str | None = None
    ) -> Scored:
        """Answer the suite greedily with the base's template; `cached` may reuse an equal earlier run.

        `fault` plants a defect in the evaluator, here and below in what registers and serves.
        """
        ...

    def register(self, model: ModelRef, out: Path, items: Path, fault: str | None = None) -> Registration:
        """Write the merged model to `out`, hash it, load it in a fresh process, compare logits on `items`."""
        ...

    def deploy(
        self, model: Path, stable: Path, plan: DeployClaim, items: Path, fault: str | None = None
    ) -> DeploymentObserved:
        """Serve `model` behind a canary beside `stable`, smoke-test it, roll back, and stop serving."""
        ...
