"""The steps a delivery workflow orders: everything that touches ledger, compute, disk, oracle or seat.

Every step may run more than once: facts carry idempotency keys, so each is written once.
"""

from typing import Literal

from pydantic import ValidationError
from temporalio import activity

from delivery_plane.claims import EvalClaim, IntakeClaim
from delivery_plane.delivery import (
    STAGES,
    DeliverySpec,
    GateKind,
    GateRequest,
    Outcome,
    StageEnding,
    StageName,
    StageReceipt,
    StageRequest,
    VerdictReceipt,
)
from delivery_plane.entry import Entry
from delivery_plane.errors import BadInput, one_line
from delivery_plane.facts import (
    BudgetReserved,
    BudgetSettled,
    DeliveryCancelled,
    DeliveryClosed,
    DeliveryFaulted,
    DeliveryOpened,
    EvaluationRequested,
    FactBase,
    FlagRaised,
    FlagResolved,
    JobEnded,
    PlantedTruth,
    ProbeObserved,
    SeatSilent,
    SeatWithdrew,
    StageOpened,
)
from delivery_plane.gates import decided
from delivery_plane.identity import SCRIPTED_APPROVER
from delivery_plane.record import Record
from delivery_plane.seat.seat import Seat
from oracle import detector
from oracle.judge import decide_outcome, judge_stage
from scenarios.catalog import load_scenario
from scenarios.seats.catalog import SEATS
from scenarios.seats.turn import Turn
from stages.catalog import STAGE_OF
from stages.eval import Eval
from stages.jobs import nothing_to_train, preflight_failed
from stages.train import Train
from workflows.acceptance import run_acceptance
from workflows.approval import policy, shown, spend_approved
from workflows.messages import (
    AcceptanceReceipt,
    DeliveryReceipt,
    Desk,
    EvaluationOrder,
    EvaluationReceipt,
    Fault,
    FlagAnswered,
    FlagRequest,
    GateReceipt,
    GateState,
    SeatTurn,
    Silence,
)
from workflows.opening import open_delivery
from workflows.platform import Platform
from workflows.visit import Visit, visiting


class DeliveryActivities:
    """All activities of a delivery, on one platform. Which run here is decided by the worker's queue."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._ledger = platform.ledger

    # --- opening and closing

    @activity.defn
    def open_delivery(self, spec: DeliverySpec) -> None:
        """Record the engagement, its planted truth, and make its data ready."""
        open_delivery(self._platform, spec)

    @activity.defn
    def record_silence(self, silence: Silence) -> None:
        """The seat's time is up."""
        fact = SeatSilent(waiting_for=silence.waiting_for, after_seconds=silence.after_seconds)
        self._ledger.fact(silence.delivery_id, fact)

    @activity.defn
    def record_fault(self, fault: Fault) -> None:
        """The platform could not go on, or an operator cancelled."""
        fact: FactBase = (
            DeliveryCancelled(reason=fault.message)
            if fault.cancelled
            else DeliveryFaulted(boundary=fault.boundary, message=fault.message)
        )
        self._ledger.fact(fault.delivery_id, fact)

    @activity.defn
    def close_delivery(self, delivery_id: str) -> DeliveryReceipt:
        """Write the one outcome and sign the head."""
        with self._ledger.writing(delivery_id) as writer:
            outcome, applied = decide_outcome(Record(writer.entries, for_oracle=True))
            visited = {fact.value.stage for fact in writer.record.facts(StageOpened)}
            fact = DeliveryClosed(
                outcome=outcome,
                applied=applied,
                not_reached=tuple(stage for stage in STAGES if stage not in visited),
            )
            entry = writer.fact(fact)
        self._ledger.checkpoint(delivery_id)
        return DeliveryReceipt(
            delivery_id=delivery_id, outcome=Outcome(entry.payload["outcome"]), closing_entry=entry.number
        )

    # --- stages

    @activity.defn
    def open_stage(self, request: StageRequest) -> None:
        """Record what the seat is entitled to see, then open the stage for its claim."""
        with visiting(self._platform, request) as visit:
            for fact in STAGE_OF[request.stage].prepare(visit.context):
                visit.append(fact)
            visit.append(StageOpened(stage=request.stage, attempt=request.attempt))

    @activity.defn
    def read_desk(self, request: StageRequest) -> Desk:
        """The claim of this visit, or what the seat asked for first."""
        record = self._ledger.record(request.delivery_id)
        answered = {fact.value.work_id for fact in record.facts(BudgetSettled)}
        answered |= {fact.value.work_id for fact in record.facts(BudgetReserved) if not fact.value.granted}
        found = _claim_entry(record, request)
        claim = found.claim() if found else None
        action: str | None = None
        if isinstance(claim, EvalClaim):
            action = claim.action
        elif isinstance(claim, IntakeClaim):
            action = claim.decision
        return Desk(
            claim_entry=found.number if found else None,
            action=action,
            evaluations=tuple(
                fact.value.request_id
                for fact in record.facts(EvaluationRequested)
                if fact.value.request_id not in answered
            ),
            withdrawn=record.last(SeatWithdrew) is not None,
        )

    @activity.defn
    def run_stage(self, request: StageRequest) -> StageReceipt:
        """Execute a stage on its claim, appending each fact as it is observed; the detector looks at probes."""
        with visiting(self._platform, request) as visit:
            record = visit.context.record
            first = record.entries[-1].number + 1
            paused = _paused_flag(record, request)
            if paused:
                return StageReceipt(first_entry=first, last_entry=first, ended="flagged", flag_id=paused)
            claim = _claim_entry(record, request)
            assert claim
            facts = STAGE_OF[request.stage].execute(visit.context, claim.claim())
            reply: Literal["stop"] | None = None
            flag_id = None
            try:
                while True:
                    recorded = visit.append(facts.send(reply))
                    reply = None
                    raised = self._look(visit, recorded)
                    if raised and raised.action == "paused":
                        flag_id, reply = raised.flag_id, "stop"
            except StopIteration:
                pass
            finally:
                facts.close()
        record = self._ledger.record(request.delivery_id)
        ended: StageEnding = "complete"
        if flag_id:
            ended = "flagged"
        elif _exhausted(record, request):
            ended = "budget_exhausted"
        elif nothing_to_train(record):
            ended = "nothing_to_train"
        elif request.stage is StageName.CONFIG and preflight_failed(record):
            ended = "preflight_failed"
        return StageReceipt(
            first_entry=first, last_entry=record.entries[-1].number, ended=ended, flag_id=flag_id
        )

    def _look(self, visit: Visit, fact: FactBase) -> FlagRaised | None:
        if not isinstance(fact, ProbeObserved):
            return None
        opened, truth = visit.context.record.last(DeliveryOpened), visit.context.record.last(PlantedTruth)
        assert opened
        assert truth
        flag = detector.look(fact, truth.value.contract_margin)
        if flag is None or not flag.raised:
            return None
        raised = FlagRaised(
            flag_id=f"{fact.job_id}-step-{fact.step}",
            job_id=fact.job_id,
            step=fact.step,
            budget_fraction=fact.budget_fraction,
            score=flag.score,
            threshold=flag.threshold,
            probe_items=flag.items,
            action="paused" if opened.value.detector_mode == "act" else "observed",
            message=flag.message,
        )
        visit.append(raised)
        return raised

    @activity.defn
    def end_paused(self, request: StageRequest) -> None:
        """Close a job that nobody continued past its flag."""
        with visiting(self._platform, request) as visit:
            for fact in Train().end_paused(visit.context):
                visit.append(fact)

    @activity.defn
    def evaluate(self, order: EvaluationOrder) -> EvaluationReceipt:
        """One dev look that the seat asked for, if the budget allows."""
        request = StageRequest(delivery_id=order.delivery_id, stage=StageName.EVAL, attempt=order.attempt)
        with visiting(self._platform, request) as visit:
            asked = next(
                fact.value
                for fact in visit.context.record.facts(EvaluationRequested)
                if fact.value.request_id == order.request_id
            )
            for fact in Eval().look(visit.context, asked.request_id, asked.candidate):
                visit.append(fact)
        reserved = self._ledger.record(order.delivery_id).facts(BudgetReserved)
        return EvaluationReceipt(
            granted=all(fact.value.granted for fact in reserved if fact.value.work_id == order.request_id)
        )

    @activity.defn
    def judge_stage(self, request: StageRequest) -> VerdictReceipt:
        """Let the oracle judge the visit from the facts, once, and sign the head."""
        with self._ledger.writing(request.delivery_id) as writer:
            verdict = judge_stage(Record(writer.entries, for_oracle=True), request.stage, request.attempt)
            entry = writer.verdict("stage", verdict, stage=request.stage, attempt=request.attempt)
        self._ledger.checkpoint(request.delivery_id)
        return VerdictReceipt(entry=entry.number, status=verdict.status, blocked=verdict.blocked)

    # --- the scripted seat

    @activity.defn
    def drive_seat(self, turn: SeatTurn) -> bool:
        """Let a scripted seat take its turn. False: the seat is not scripted, or had nothing to do."""
        spec = self._platform.spec(turn.delivery_id)
        script = SEATS.get(spec.seat)
        if script is None:
            return False
        if self._answered(turn):  # by a run of this turn whose worker died before it could say so
            return True
        before = len(self._ledger.entries(turn.delivery_id))
        identity = self._platform.identities.get(f"seat-{spec.seat}")
        brief = load_scenario(spec.scenario).brief
        seat = Seat(self._ledger, turn.delivery_id, identity, brief, wake=lambda: None)
        try:
            script.play(seat, Turn(turn.stage, turn.attempt, turn.flag_id, spec.on_flag))
        except (BadInput, LookupError, ValidationError) as error:
            # A script that does not know how to go on has given up; the platform is not to blame. It would be where
            # two runs of one turn met, and the other has answered.
            if not self._answered(turn):
                seat.withdraw(f"the script cannot go on: {one_line(error, 500)}")
        return len(self._ledger.entries(turn.delivery_id)) > before

    def _answered(self, turn: SeatTurn) -> bool:
        """Whether what the turn asks for is on record: the claim or a request, or the answer to its flag."""
        if turn.flag_id:
            return self._ledger.record(turn.delivery_id).flag_answer(turn.flag_id) is not None
        request = StageRequest(delivery_id=turn.delivery_id, stage=turn.stage, attempt=turn.attempt)
        desk = self.read_desk(request)
        return desk.claim_entry is not None or bool(desk.evaluations) or desk.withdrawn

    @activity.defn
    def read_flag(self, flag: FlagRequest) -> FlagAnswered:
        """The seat's answer to a flag so far."""
        answer = self._ledger.record(flag.delivery_id).flag_answer(flag.flag_id)
        return FlagAnswered(action=answer.value.action if answer else None)

    @activity.defn
    def resolve_flag(self, flag: FlagRequest) -> None:
        """Record how a flag ended."""
        assert flag.because
        fact = FlagResolved(
            flag_id=flag.flag_id,
            resolution="continued" if flag.because == "gate_approved" else "stopped",
            because=flag.because,
        )
        self._ledger.fact(flag.delivery_id, fact, stage=StageName.TRAIN, attempt=flag.attempt)

    # --- gates

    @activity.defn
    def open_gate(self, request: GateRequest) -> GateReceipt:
        """Open a gate on exactly the bytes an approver will see, unless an approved quote covers it."""
        record = self._ledger.record(request.delivery_id)
        if request.kind is GateKind.SPEND and spend_approved(record):
            return GateReceipt(needed=False)
        gate = self._platform.gates.open(request, shown(record, request))
        return GateReceipt(needed=True, seconds_left=self._platform.gates.seconds_left(gate))

    @activity.defn
    def read_gate(self, request: GateRequest) -> GateState:
        """The gate's decision so far, from the ledger."""
        found = decided(self._ledger.record(request.delivery_id), request.gate_id)
        return GateState(decision=found.decision if found else None)

    @activity.defn
    def decide_by_policy(self, request: GateRequest) -> None:
        """The scripted approver's decision, signed with its own key like anybody's."""
        record = self._ledger.record(request.delivery_id)
        if decided(record, request.gate_id):
            return
        approver = self._platform.identities.get_or_new(SCRIPTED_APPROVER, "approver")
        gate = self._platform.gates.find(request.gate_id).gate
        decision, reason = policy(record, request)
        self._platform.gates.decide(
            request.delivery_id, request.gate_id, approver, decision, reason, gate.digest
        )

    @activity.defn
    def expire_gate(self, request: GateRequest) -> None:
        """No decision by the deadline is a refusal."""
        self._platform.gates.expire(request.delivery_id, request.gate_id)

    # --- acceptance

    @activity.defn
    def accept(self, delivery_id: str) -> AcceptanceReceipt:
        """The sealed paired test of the registered artifact, in the operator's process."""
        return run_acceptance(self._platform, delivery_id)


def _claim_entry(record: Record, request: StageRequest) -> Entry | None:
    """The one scored claim of a stage visit, if it came."""
    key = f"claim:{request.stage}:{request.attempt}"
    return next((entry for entry in record.entries if entry.idempotency_key == key), None)


def _exhausted(record: Record, request: StageRequest) -> bool:
    """Whether the visit was refused a reservation, or a job outran its own."""
    reserved = record.facts(BudgetReserved, request.stage, request.attempt)
    jobs = record.facts(JobEnded)
    return any(not item.value.granted for item in reserved) or any(
        job.value.status == "over_budget" for job in jobs
    )


def _paused_flag(record: Record, request: StageRequest) -> str | None:
    """A flag that paused this visit's job and was not settled by going on."""
    went_on = {
        fact.value.flag_id for fact in record.facts(FlagResolved) if fact.value.resolution == "continued"
    }
    return next(
        (
            fact.value.flag_id
            for fact in record.facts(FlagRaised, request.stage, request.attempt)
            if fact.value.action == "paused" and fact.value.flag_id not in went_on
        ),
        None,
    )
