"""Facts of training jobs: started, probed, checkpointed, ended. True because the platform ran them."""

from typing import Literal

from delivery_plane.delivery import Frozen
from delivery_plane.facts.base import FactBase


class Strategy(Frozen):
    """State of one run: objective k, mechanism m, data regime d, lineage g (base to output)."""

    k: Literal["SFT", "PREF", "ONLINE_RL"]
    m: str
    d: str
    g: tuple[str, ...]


class JobStarted(FactBase):
    """A trainer began, or began again from a checkpoint, under a fencing token."""

    kind: Literal["job_started"] = "job_started"
    v: Literal[2] = 2
    job_id: str
    job_digest: str
    recipe: str
    strategy: Strategy
    dataset_digest: str
    base: str
    base_digest: str
    parent: str = "base"
    """The job it starts from, or `base`."""
    parent_digest: str | None = None
    """Of the weights it starts from; None: the base's own."""
    generator_digests: tuple[str, ...] = ()
    """Models of this delivery that wrote the rows it trains on; none for a customer's rows."""
    reference_digest: str | None = None
    """Weights held fixed beside the policy (preference optimisation, or a divergence penalty); None: no such."""
    reward: str | None = None
    """The program that rewards sampled answers; None: nothing is sampled."""
    steps: int
    resume_step: int
    fence: int
    device: str
    world_size: int

    def key(self) -> str:
        return f"{self.job_id}:{self.fence}"


class PolicyObserved(Frozen):
    """What a policy sampled and earned: means over the steps since the previous probe, counts since the start."""

    rollouts: int
    policy_versions: int
    """Versions of the weights that answers were sampled from."""
    generated_tokens: int
    reward_mean: float | None
    reward_std: float | None
    zero_std_share: float | None
    """Share of groups in which every answer earned the same, which teach nothing."""
    clipped_share: float | None
    """Share of sampled answers cut at their length limit."""


class PreferenceObserved(Frozen):
    """How a policy stands to its reference: means over the steps since the previous probe."""

    accuracy: float | None
    """Share of pairs whose better answer gained more than the worse one."""
    margin: float | None
    """By how many nats, times beta."""
    chosen_shift: float | None
    """Change of the better answer's log-probability from the reference, in nats, times beta."""


class ProbeObserved(FactBase):
    """The job at one sixteenth of its run: training since the last probe, and the held-out probe.

    Losses are nats per supervised token. `wins`/`losses` pair the job's probe answers with the base's.
    """

    kind: Literal["probe_observed"] = "probe_observed"
    v: Literal[2] = 2
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
    """Euclidean norm of the change from the weights the job started from (adapter product included)."""
    tokens: int
    """Trained so far, prompt and answer."""
    supervised_tokens: int
    device_seconds: float
    """So far, over every resume of the job; probes included."""
    probe_seconds: float
    """So far, of the probes alone."""
    peak_memory_bytes: int
    probe_prompt_loss: float | None = None
    """Nats per prompt token of the probe rows: what `probe_loss` leaves out."""
    generated_items: int = 0
    """Probe rows whose answers were also generated, greedily; 0: not at this probe. The next three are over them."""
    generated_correct: int = 0
    end_of_turn_share: float | None = None
    """Share of generated answers that ended their turn by themselves."""
    generated_tokens_mean: float | None = None
    consumed_rows: int = 0
    """Rows trained on so far, repeats counted, prompts of sampled answers included."""
    distinct_rows: int = 0
    """How many different rows those were."""
    consumed_digest: str | None = None
    """Over the ids of all rows trained on so far, in order, chained from the start of the job."""
    consumed_sample: tuple[str, ...] = ()
    """Ids of the rows of the last step, at most eight."""
    policy: PolicyObserved | None = None
    """For online reinforcement learning."""
    preference: PreferenceObserved | None = None
    """For preference optimisation."""

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
    v: Literal[2] = 2
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
    rollouts: int = 0
    policy_versions: int = 0
    generated_tokens: int = 0
    consumed_rows: int = 0
    distinct_rows: int = 0
    """How many different rows those were."""
    consumed_digest: str | None = None

    def key(self) -> str:
        return self.job_id
