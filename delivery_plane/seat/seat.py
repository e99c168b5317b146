"""What whoever holds the seat may do: read, claim, ask for a dev evaluation, answer a flag, give up.

A refused request is recorded and comes back as an error that says what to do; it is never scored.
"""

from collections.abc import Callable
from typing import NoReturn

from delivery_plane import meter
from delivery_plane.claims import FlagAnswer, parse_claim
from delivery_plane.delivery import Amounts, Frozen, StageName
from delivery_plane.errors import BadInput
from delivery_plane.facts import (
    ClaimRefused,
    DeliveryClosed,
    DeliveryOpened,
    EvaluationRequested,
    FlagRaised,
    FlagResolved,
    JobEnded,
    SeatWithdrew,
    StageOpened,
    Visibility,
)
from delivery_plane.identity import Identity
from delivery_plane.ledger import Ledger, Writer
from delivery_plane.record import Record


class ClaimNotTaken(BadInput):
    """A claim came at the wrong time or twice. Recorded as a fact; nothing was scored."""


class Brief(Frozen):
    """What the seat works from: the customer's words, where it stands, what it may still spend."""

    text: str
    stage: StageName
    attempt: int
    remaining: Amounts


class Seat:
    """One holder's door to one delivery. `wake` tells the workflow that the ledger has news."""

    def __init__(
        self, ledger: Ledger, delivery_id: str, identity: Identity, brief: str, wake: Callable[[], None]
    ) -> None:
        self._ledger = ledger
        self._delivery_id = delivery_id
        self._identity = identity
        self._brief = brief
        self._wake = wake
        opened = ledger.record(delivery_id).last(DeliveryOpened)
        if opened is None or opened.value.seat_public_key != identity.public_key:
            raise BadInput(f"identity {identity.name} does not hold the seat of {delivery_id}")

    def record(self) -> Record:
        """The entries this seat is entitled to: its claims and the facts meant for it, never findings."""
        entries = self._ledger.entries(self._delivery_id)
        return Record(
            [entry for entry in entries if entry.visibility is Visibility.SEAT and entry.type != "verdict"]
        )

    def brief(self) -> Brief:
        """The brief, the open stage and the remaining budget in all units."""
        record = self._ledger.record(self._delivery_id)
        visit = _open_visit(record)
        return Brief(text=self._brief, stage=visit.stage, attempt=visit.attempt, remaining=meter.left(record))

    def claim(self, payload: object) -> int:
        """Submit the one claim of the open stage visit, typed or as data; returns its entry number.

        Raises ClaimNotTaken when it is no claim, another stage is open, or this one has its claim already.
        """
        try:
            claim = parse_claim(payload)
        except BadInput as error:
            self._refuse_form(str(error))
        refusal: ClaimRefused | None = None
        with self._ledger.writing(self._delivery_id) as writer:
            if isinstance(claim, FlagAnswer):
                key, stage, refusal = self._flag_place(writer, claim)
            else:
                visit = _open_visit(writer.record)
                key, stage = f"claim:{visit.stage}:{visit.attempt}", visit.stage
                if claim.stage != visit.stage:
                    refusal = ClaimRefused(stage=claim.stage, why=f"the open stage is {visit.stage}")
                elif writer.find(key):
                    refusal = ClaimRefused(stage=claim.stage, why="this visit has its claim already")
            if not refusal and writer.record.last(DeliveryClosed):
                refusal = ClaimRefused(stage=claim.stage, why="the delivery is closed")
            attempt = _open_visit(writer.record).attempt
            if refusal:
                _record(writer, refusal, stage, attempt)
            else:
                entry = writer.claim(
                    claim, key=key, stage=stage, attempt=attempt, actor=f"seat:{self._identity.name}"
                )
        if refusal:
            self._ledger.checkpoint(self._delivery_id)
            raise ClaimNotTaken(f"claim for {claim.stage} not taken: {refusal.why}")
        self._wake()
        return entry.number

    def _refuse_form(self, why: str) -> NoReturn:
        with self._ledger.writing(self._delivery_id) as writer:
            visit = _open_visit(writer.record)
            _record(writer, ClaimRefused(stage=visit.stage, why=why), visit.stage, visit.attempt)
        self._ledger.checkpoint(self._delivery_id)
        raise ClaimNotTaken(why)

    def _flag_place(self, writer: Writer, answer: FlagAnswer) -> tuple[str, StageName, ClaimRefused | None]:
        key = f"answer:{answer.flag_id}"
        raised = {fact.value.flag_id for fact in writer.record.facts(FlagRaised)}
        resolved = {fact.value.flag_id for fact in writer.record.facts(FlagResolved)}
        why = None
        if answer.flag_id not in raised:
            why = f"no flag {answer.flag_id}"
        elif answer.flag_id in resolved or writer.find(key):
            why = f"flag {answer.flag_id} has its answer already"
        return key, StageName.TRAIN, ClaimRefused(stage="flag", why=why) if why else None

    def request_evaluation(self, candidate: str) -> str:
        """Ask for one scoring of a candidate (a job id or `base`) on dev; returns the request's id.

        The result comes as a `candidate_evaluated` fact and costs one dev evaluation.
        """
        with self._ledger.writing(self._delivery_id) as writer:
            _refuse_closed(writer.record)
            visit = _open_visit(writer.record)
            if visit.stage is not StageName.EVAL:
                raise BadInput(f"dev evaluations are for the eval stage; {visit.stage} is open")
            jobs = (fact.value for fact in writer.record.facts(JobEnded))
            known = {"base", *(job.job_id for job in jobs if job.checkpoint_digest)}
            if candidate not in known:
                raise BadInput(f"no candidate {candidate}; there are: {', '.join(sorted(known))}")
            made = len(writer.record.facts(EvaluationRequested))
            fact = EvaluationRequested(request_id=f"look-{made + 1}", candidate=candidate)
            writer.fact(fact, stage=visit.stage, attempt=visit.attempt, actor=f"seat:{self._identity.name}")
        self._wake()
        return fact.request_id

    def withdraw(self, reason: str) -> None:
        """Give the delivery up."""
        with self._ledger.writing(self._delivery_id) as writer:
            _refuse_closed(writer.record)
            writer.fact(SeatWithdrew(reason=reason), actor=f"seat:{self._identity.name}")
        self._wake()


def _refuse_closed(record: Record) -> None:
    if record.last(DeliveryClosed):
        raise BadInput("the delivery is closed")


def _record(writer: Writer, refusal: ClaimRefused, stage: StageName, attempt: int) -> None:
    count = sum(entry.kind == "claim_refused" for entry in writer.entries)
    writer.fact(refusal, key=f"claim-refused:{count + 1}", stage=stage, attempt=attempt)


def _open_visit(record: Record) -> StageOpened:
    visit = record.last(StageOpened)
    if visit is None:
        raise BadInput("no stage is open yet; try again in a moment")
    return visit.value
