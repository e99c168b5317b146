"""Facts of the stages after training: dev scores, the artifact, serving, meters, card, acceptance."""

from typing import ClassVar, Literal

from delivery_plane.delivery import Amounts, Frozen
from delivery_plane.facts.base import FactBase, Visibility


class MeasurementFailed(FactBase):
    """Something could not be measured. The base is the control: if it works, the candidate failed."""

    kind: Literal["measurement_failed"] = "measurement_failed"
    v: Literal[1] = 1
    what: str
    subject: str
    tries: int
    control: Literal["base_works", "base_fails"]
    error: str

    def key(self) -> str:
        return f"{self.what}:{self.subject}"


class AcceptanceUnmeasured(FactBase):
    """The sealed test could not be run on the artifact. The base is the control. Operator only."""

    kind: Literal["acceptance_unmeasured"] = "acceptance_unmeasured"
    v: Literal[1] = 1
    visibility: ClassVar[Visibility] = Visibility.OPERATOR
    tries: int
    control: Literal["base_works", "base_fails"]
    error: str


class CandidateEvaluated(FactBase):
    """One look at the dev split: a candidate paired with the base, greedy, same template both sides."""

    kind: Literal["candidate_evaluated"] = "candidate_evaluated"
    v: Literal[1] = 1
    request_id: str
    candidate: str
    split: Literal["dev"] = "dev"
    split_digest: str
    model_digest: str
    items: int
    correct: int
    base_correct: int
    wins: int
    losses: int
    ties: int
    uplift: float
    look: int
    """Which look at the dev split this was, from 1."""
    empty_answers: int
    decoding_digest: str
    template_digest: str

    def key(self) -> str:
        return self.request_id


class ArtifactRegistered(FactBase):
    """The deliverable, hashed tensor by tensor and loaded again in a fresh process."""

    kind: Literal["artifact_registered"] = "artifact_registered"
    v: Literal[1] = 1
    candidate: str
    artifact_name: str
    model_digest: str
    base_digest: str
    tensors: int
    tensors_equal_to_base: int
    files: dict[str, str]
    """File name to SHA-256."""
    bytes: int
    parent_job: str | None
    parent_checkpoint_digest: str | None
    checkpoint_digest_now: str | None
    """Of the checkpoint's files as found when registering."""
    template_equal_to_base: bool
    tokenizer_equal_to_base: bool
    reload_max_logit_difference: float
    """Artifact in a fresh process against the model it was saved from; 0 is bit equal."""
    checkpoint_max_logit_difference: float
    """Artifact against base plus the last checkpoint's adapter, or its full weights."""
    logit_positions: int
    finite: bool


class CanaryStep(Frozen):
    """One step of the roll-out: requests sent at one canary share."""

    canary_share: float
    requests: int
    canary_requests: int
    errors: int
    p50_milliseconds: float
    p95_milliseconds: float


class DeploymentObserved(FactBase):
    """The artifact served behind a canary on a chat-completions endpoint, and the way back."""

    kind: Literal["deployment_observed"] = "deployment_observed"
    v: Literal[1] = 1
    model_digest: str
    steps: tuple[CanaryStep, ...]
    smoke_requests: int
    smoke_matches: int
    """Served answers equal to the artifact's answers computed without the server."""
    stopped_at_share: float | None
    """None: no limit was crossed."""
    rollback_exercised: bool
    rollback_digest: str | None
    """Weights that served after the rollback."""
    rollback_seconds: float | None


class MetersRead(FactBase):
    """The meters at the time of the invoice."""

    kind: Literal["meters_read"] = "meters_read"
    v: Literal[1] = 1
    used: Amounts
    reserved: Amounts
    budget: Amounts
    price_book: str


class CardChecked(FactBase):
    """Every number on the card against the fact it cites."""

    kind: Literal["card_checked"] = "card_checked"
    v: Literal[1] = 1
    card_digest: str
    numbers: int
    unsupported_numbers: tuple[str, ...]
    uncited_numbers: tuple[str, ...]
    """Numbers in the text that no citation carries."""
    metadata: dict[str, str]
    missing_metadata: tuple[str, ...]
    missing_sections: tuple[str, ...]


class AcceptanceTested(FactBase):
    """Counts of the sealed paired test. The seat learns only whether the delivery was accepted."""

    kind: Literal["acceptance_tested"] = "acceptance_tested"
    v: Literal[1] = 1
    visibility: ClassVar[Visibility] = Visibility.OPERATOR
    model_digest: str
    base_digest: str
    sealed_digest: str
    items: int
    wins: int
    losses: int
    ties: int
    correct: int
    base_correct: int
    decoding_digest: str
    template_digest: str
