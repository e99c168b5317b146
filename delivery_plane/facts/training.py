"""Facts of training jobs: started, probed, checkpointed, ended. True because the platform ran them."""

from typing import Literal

from delivery_plane.delivery import Frozen
from delivery_plane.facts.base import FactBase


class Strategy(Frozen):
    """State of one run: objective k, mechanism m, data regime d, lineage g (base to output)."""

    k: Literal["SFT"]
    m: str
    d: str
    g: tuple[str, ...]


class JobStarted(FactBase):
    """A trainer began, or began again from a checkpoint, under a fencing token."""

    kind: Literal["job_started"] = "job_started"
    v: Literal[1] = 1
    job_id: str
    job_digest: str
    recipe: str
    strategy: Strategy
    dataset_digest: str
    base: str
    base_digest: str
    steps: int
    resume_step: int
    fence: int
    device: str
    world_size: int

    def key(self) -> str:
        return f"{self.job_id}:{self.fence}"


class ProbeObserved(FactBase):
    """The job at one sixteenth of its run: training since the last probe, and the held-out probe.

    Losses are nats per supervised token. `wins`/`losses` pair the job's probe answers with the base's.
    """

    kind: Literal["probe_observed"] = "probe_observed"
    v: Literal[1] = 1
    job_id: str
    step: int
    budget_fraction: float
    train_loss: float | None
    """Mean over the steps since the previous probe; None: not finite."""
    grad_norm: float | None
    learning_rate: float | None
    probe_items: int
    probe_loss: float | None
    """None: not finite."""
    base_probe_loss: float
    probe_correct: int
    base_correct: int
    wins: int
    losses: int
    parameter_delta_norm: float
    """Euclidean norm of the change from the base's weights (adapter product included)."""
    tokens: int
    """Trained so far, prompt and answer."""
    supervised_tokens: int
    device_seconds: float
    """So far, over every resume of the job; probes included."""
    probe_seconds: float
    """So far, of the probes alone."""
    peak_memory_bytes: int

    def key(self) -> str:
        return f"{self.job_id}:{self.step}"


class CheckpointSaved(FactBase):
    """A resumable checkpoint lies complete on disk; `digest` covers its weight files."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    v: Literal[1] = 1
    job_id: str
    step: int
    digest: str
    bytes: int

    def key(self) -> str:
        return f"{self.job_id}:{self.step}"


class JobEnded(FactBase):
    """A job is over, for whatever reason. First and last figures are of the first and last probe taken."""

    kind: Literal["job_ended"] = "job_ended"
    v: Literal[1] = 1
    job_id: str
    status: Literal["completed", "stopped", "over_budget", "not_finite"]
    steps: int
    tokens: int
    supervised_tokens: int
    gpu_seconds: float
    usd: float
    train_loss_first: float | None
    train_loss_last: float | None
    probe_first: float | None
    probe_last: float | None
    """Probe accuracy as a share."""
    peak_memory_bytes: int
    checkpoint_digest: str | None

    def key(self) -> str:
        return self.job_id
