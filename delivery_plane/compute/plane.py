"""What a compute plane must do, and the requests and answers it speaks. No plane is implemented here."""

from collections.abc import Generator
from pathlib import Path
from typing import Literal, Protocol

from delivery_plane.claims import DeployClaim, LoraSettings
from delivery_plane.delivery import Frozen
from delivery_plane.entry import canonical, sha256
from delivery_plane.facts import CheckpointSaved, ConfigRendered, DeploymentObserved, Offer, ProbeObserved

PROBES = 16
"""A job is probed at every sixteenth of its steps."""


def checkpoint_path(job_folder: Path, step: int) -> Path:
    """Where a job's checkpoint of a step lies."""
    return job_folder / f"checkpoint-{step}"


class JobSpec(Frozen):
    """One training job, complete. `digest` covers what determines its result, not where files lie."""

    job_id: str
    recipe: Literal["sft"] = "sft"
    base_path: Path
    base_digest: str
    dataset_path: Path
    dataset_digest: str
    probe_path: Path
    probe_digest: str
    job_folder: Path
    mechanism: Literal["full", "lora"]
    learning_rate: float
    scheduler: Literal["linear", "cosine", "constant"]
    warmup_share: float
    batch_rows: int
    steps: int
    max_tokens_per_row: int
    masking: Literal["assistant_only", "all"]
    lora: LoraSettings | None
    seed: int
    device: Literal["auto", "cpu", "cuda"] = "auto"
    fault: str | None = None
    """A planted fault. It changes what runs, never what is recorded about the plan."""

    @property
    def digest(self) -> str:
        """Content digest of the job as planned."""
        left_out = {"job_id", "base_path", "dataset_path", "probe_path", "job_folder", "fault"}
        return sha256(canonical(self.model_dump(mode="json", exclude=left_out)))

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint saved after `step` lies; the last two are kept."""
        return checkpoint_path(self.job_folder, step)

    def probe_steps(self) -> tuple[int, ...]:
        """Steps after which the job is probed: every sixteenth of the run, the last step included."""
        return tuple(sorted({max(1, round(self.steps * k / PROBES)) for k in range(1, PROBES + 1)}))


class Resume(Frozen):
    """Where a job goes on: its last complete checkpoint, and what had been used by then."""

    step: int
    tokens: int
    supervised_tokens: int
    device_seconds: float
    probe_seconds: float


class ModelRef(Frozen):
    """A model to load: a base folder, or a base with a job's checkpoint (adapter or full weights)."""

    base_path: Path
    checkpoint_path: Path | None = None


class Scored(Frozen):
    """A model's answers on a set of items, greedy, as right or wrong in item order."""

    model_digest: str
    items_digest: str
    correct: tuple[bool, ...]
    empty_answers: int
    generated_tokens: int
    device_seconds: float
    decoding_digest: str
    template_digest: str

    def against(self, base: "Scored") -> tuple[int, int, int]:
        """Wins, losses and ties of this model against `base` on the same items. Raises ValueError otherwise."""
        if self.items_digest != base.items_digest:
            raise ValueError("answers to different items cannot be paired")
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

    def train(
        self, job: JobSpec, resume: Resume | None
    ) -> Generator[Observation, Literal["stop"] | None, TrainStatus]:
        """Run the job, yielding a probe and a checkpoint at every sixteenth.

        The trainer waits at each probe until the generator is resumed; sending "stop" there makes it
        save a checkpoint (yielded) and end. Closing the generator ends the trainer at once.
        """
        ...

    def evaluate(self, model: ModelRef, items: Path, cached: bool = False) -> Scored:
        """Answer every item greedily with the base's template; `cached` may reuse an equal earlier run."""
        ...

    def register(self, model: ModelRef, out: Path, items: Path) -> Registration:
        """Write the merged model to `out`, hash it, load it in a fresh process, compare logits on `items`."""
        ...

    def deploy(self, model: Path, stable: Path, plan: DeployClaim, items: Path) -> DeploymentObserved:
        """Serve `model` behind a canary beside `stable`, smoke-test it, roll back, and stop serving."""
        ...
