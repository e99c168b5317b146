"""Facts about the delivery itself: opening, stages, gates, flags, budget, closing."""

from typing import ClassVar, Literal

from delivery_plane.claims import IssueKind
from delivery_plane.delivery import Amounts, GateDecision, GateKind, Outcome, StageName
from delivery_plane.facts.base import FactBase, Visibility


class DeliveryOpened(FactBase):
    """The engagement as ordered and the platform it runs on. `certificate` None: uncertified."""

    kind: Literal["delivery_opened"] = "delivery_opened"
    v: Literal[1] = 1
    scenario: str
    scenario_version: int
    scenario_digest: str
    certificate: str | None
    brief_digest: str
    seat: str
    seat_public_key: str
    plane: str
    device: str
    seed: int
    bases: dict[str, str]
    """Base name to the digest of its weights."""
    base_licences: dict[str, str]
    budget: Amounts
    detector_mode: Literal["act", "observe"]
    platform_version: str


class PlantedTruth(FactBase):
    """What the oracle compares with: the contract and the planted issues. Operator only."""

    kind: Literal["planted_truth"] = "planted_truth"
    v: Literal[1] = 1
    visibility: ClassVar[Visibility] = Visibility.OPERATOR
    metric: str
    metric_synonyms: tuple[str, ...]
    contract_margin: float
    alpha: float
    feasible: bool
    permitted_licences: tuple[str, ...]
    planted_rows: dict[IssueKind, int]
    sealed_items: int
    sealed_digest: str
    dev_digest: str
    probe_digest: str


class FaultPlanted(FactBase):
    """Which fault the platform was told to plant. Kept from rules, detector and seat."""

    kind: Literal["fault_planted"] = "fault_planted"
    v: Literal[2] = 2
    visibility: ClassVar[Visibility] = Visibility.OPERATOR
    for_oracle: ClassVar[bool] = False
    fault: str
    digest: str | None = None
    """Of the file of a fault from outside the package; None for one that ships with it."""


class StageOpened(FactBase):
    """A stage visit began; the seat may now claim."""

    kind: Literal["stage_opened"] = "stage_opened"
    v: Literal[1] = 1
    stage: StageName
    attempt: int

    def key(self) -> str:
        return f"{self.stage}:{self.attempt}"


class ClaimRefused(FactBase):
    """The seat sent something that was not taken as its claim, and why. Nothing is scored."""

    kind: Literal["claim_refused"] = "claim_refused"
    v: Literal[1] = 1
    stage: str
    why: str


class GateOpened(FactBase):
    """A gate waits. `shown` is exactly what the approver sees; `digest` is its SHA-256.

    Not for the seat: a release gate shows how the sealed test went.
    """

    kind: Literal["gate_opened"] = "gate_opened"
    v: Literal[1] = 1
    visibility: ClassVar[Visibility] = Visibility.OPERATOR
    gate_id: str
    gate: GateKind
    attempt: int
    subject: str | None
    shown: str
    digest: str
    opened_at: str
    deadline_at: str

    def key(self) -> str:
        return self.gate_id


class GateDecided(FactBase):
    """The one decision of a gate. Signed over gate, decision, digest and reason, unless it expired."""

    kind: Literal["gate_decided"] = "gate_decided"
    v: Literal[1] = 1
    gate_id: str
    gate: GateKind
    decision: GateDecision
    by: str | None
    public_key: str | None
    reason: str
    digest: str
    signature: str | None
    seconds_open: float

    def key(self) -> str:
        return self.gate_id


class GateDecisionRefused(FactBase):
    """Somebody tried to decide a gate and was not let: who and why."""

    kind: Literal["gate_decision_refused"] = "gate_decision_refused"
    v: Literal[1] = 1
    gate_id: str
    by: str
    why: Literal[
        "seat_holder",
        "not_an_approver",
        "already_decided",
        "late",
        "no_reason",
        "changed_bytes",
        "bad_signature",
    ]
    detail: str


class FlagRaised(FactBase):
    """The detector's alarm on a job at one probe. `observed`: recorded, nothing paused."""

    kind: Literal["flag_raised"] = "flag_raised"
    v: Literal[1] = 1
    flag_id: str
    job_id: str
    step: int
    budget_fraction: float
    score: float
    threshold: float
    probe_items: int
    action: Literal["paused", "observed"]
    message: str

    def key(self) -> str:
        return self.flag_id


class FlagResolved(FactBase):
    """How a flag ended: the job was stopped, or a person approved going on."""

    kind: Literal["flag_resolved"] = "flag_resolved"
    v: Literal[1] = 1
    flag_id: str
    resolution: Literal["stopped", "continued"]
    because: Literal["seat_stopped", "seat_silent", "gate_approved", "gate_refused"]

    def key(self) -> str:
        return self.flag_id


class BudgetReserved(FactBase):
    """Amounts set aside before work starts; refused reservations are recorded too."""

    kind: Literal["budget_reserved"] = "budget_reserved"
    v: Literal[1] = 1
    work_id: str
    amounts: Amounts
    granted: bool
    exceeding: tuple[str, ...]

    def key(self) -> str:
        return self.work_id


class BudgetSettled(FactBase):
    """What the work really used; releases the rest of its reservation."""

    kind: Literal["budget_settled"] = "budget_settled"
    v: Literal[1] = 1
    work_id: str
    amounts: Amounts

    def key(self) -> str:
        return self.work_id


class EvaluationRequested(FactBase):
    """The seat asked for one scoring of a candidate on the dev split."""

    kind: Literal["evaluation_requested"] = "evaluation_requested"
    v: Literal[1] = 1
    request_id: str
    candidate: str

    def key(self) -> str:
        return self.request_id


class SeatWithdrew(FactBase):
    """The seat gave up the delivery."""

    kind: Literal["seat_withdrew"] = "seat_withdrew"
    v: Literal[1] = 1
    reason: str


class SeatSilent(FactBase):
    """The seat let a deadline pass without a claim: taken as a withdrawal."""

    kind: Literal["seat_silent"] = "seat_silent"
    v: Literal[1] = 1
    waiting_for: str
    after_seconds: float


class DeliveryFaulted(FactBase):
    """The platform could not go on; the seat is not to blame."""

    kind: Literal["delivery_faulted"] = "delivery_faulted"
    v: Literal[1] = 1
    boundary: str
    message: str


class DeliveryCancelled(FactBase):
    """An operator ended the delivery; neither the seat nor the platform is to blame."""

    kind: Literal["delivery_cancelled"] = "delivery_cancelled"
    v: Literal[1] = 1
    reason: str


class DeliveryClosed(FactBase):
    """The one outcome, and every outcome that applied."""

    kind: Literal["delivery_closed"] = "delivery_closed"
    v: Literal[1] = 1
    outcome: Outcome
    applied: tuple[Outcome, ...]
    not_reached: tuple[StageName, ...]


class DeliveryPurged(FactBase):
    """An operator had a closed delivery's files erased. The one fact that may follow the closing."""

    kind: Literal["delivery_purged"] = "delivery_purged"
    v: Literal[1] = 1
    visibility: ClassVar[Visibility] = Visibility.OPERATOR
    for_oracle: ClassVar[bool] = False
    files: int
    bytes: int
    rows_kept_for: tuple[str, ...]
    """Other deliveries on the same rows; empty: the rows were erased too."""
    reason: str
