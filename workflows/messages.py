"""What workflow and activities say to each other: ids, entry numbers, short answers. Never facts."""

from typing import Literal

from delivery_plane.delivery import Frozen, GateDecision, Outcome, StageName

GOVERNANCE_QUEUE = "governance"
COMPUTE_QUEUE = "compute"

HEARTBEAT_TIMEOUT_SECONDS = 12.0
"""A step whose worker has not been heard of for so long is given to another. Not shorter: on two busy cores a live
worker was silent for up to some seconds."""
HEARTBEAT_SECONDS = 3.0

PREFLIGHTS = 3
"""How often a delivery's configuration may fail its preflight. The seat is told what to change each time, and nothing
was spent; without a limit a seat that changes nothing would go on for ever."""

COMPUTE_STAGES = frozenset(
    {StageName.CONFIG, StageName.TRAIN, StageName.EVAL, StageName.REGISTER, StageName.DEPLOY}
)
"""Stages that run where the models are; the others need no torch."""


ENTRIES_NAMED = ("claim_entry", "entry", "closing_entry")
"""Fields of receipts, here and in `delivery_plane.delivery`, that name an entry which is in the ledger for certain."""


class Desk(Frozen):
    """What lies on a stage's desk: the claim, or what the seat asked for first."""

    claim_entry: int | None = None
    action: str | None = None
    """The claim's decision, for the workflow's order of events: `decline`, `continue`, `switch`, `stop`."""
    evaluations: tuple[str, ...] = ()
    """Ids of dev evaluations asked for and not yet answered."""
    withdrawn: bool = False


class FlagAnswered(Frozen):
    """The seat's answer to a flag; None while it is silent."""

    action: Literal["stop", "switch", "continue"] | None


class GateReceipt(Frozen):
    """Whether a gate is needed at all, and how long it still waits."""

    needed: bool
    seconds_left: float = 0.0


class GateState(Frozen):
    """A gate's decision so far."""

    decision: GateDecision | None


class AcceptanceReceipt(Frozen):
    """Whether the sealed test accepted; None: it could not be measured."""

    accepted: bool | None


class DeliveryReceipt(Frozen):
    """How a delivery ended."""

    delivery_id: str
    outcome: Outcome
    closing_entry: int


class FlagRequest(Frozen):
    """One flag of one delivery, and how it was resolved (when resolving)."""

    delivery_id: str
    attempt: int
    flag_id: str
    because: Literal["seat_stopped", "seat_silent", "gate_approved", "gate_refused"] | None = None


class EvaluationOrder(Frozen):
    """One dev evaluation that the seat asked for."""

    delivery_id: str
    attempt: int
    request_id: str


class EvaluationReceipt(Frozen):
    """Whether the budget allowed the look."""

    granted: bool


class SeatTurn(Frozen):
    """A scripted seat's turn: a stage visit, or a flag on its job."""

    delivery_id: str
    stage: StageName
    attempt: int
    flag_id: str | None = None


class Silence(Frozen):
    """The seat let a deadline pass."""

    delivery_id: str
    waiting_for: str
    after_seconds: float


class Fault(Frozen):
    """Why the platform could not go on, or that an operator cancelled."""

    delivery_id: str
    cancelled: bool
    boundary: str
    message: str
