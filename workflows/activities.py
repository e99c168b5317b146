"""The steps a delivery workflow orders: everything that touches ledger, compute, disk, oracle or seat.

Every step may run more than once: facts carry idempotency keys, so each is written once.
"""

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from temporalio import activity

from delivery_plane import __version__, meter
from delivery_plane.claims import EvalClaim, IntakeClaim
from delivery_plane.compute.local.digests import model_digest
from delivery_plane.compute.plane import ModelRef
from delivery_plane.compute.sealed import SealedOverlap
from delivery_plane.delivery import (
    STAGES,
    Amounts,
    DeliverySpec,
    GateKind,
    GateRequest,
    OnFlag,
    Outcome,
    StageName,
    StageReceipt,
    StageRequest,
    VerdictReceipt,
)
from delivery_plane.entry import sha256
from delivery_plane.errors import ComputeFault, LedgerFault
from delivery_plane.facts import (
    AcceptanceTested,
    ArtifactRegistered,
    BudgetReserved,
    BudgetSettled,
    DeliveryCancelled,
    DeliveryClosed,
    DeliveryFaulted,
    DeliveryOpened,
    EvaluationRequested,
    FactBase,
    FaultPlanted,
    FlagRaised,
    FlagResolved,
    MeasurementFailed,
    PlantedTruth,
    ProbeObserved,
    SeatSilent,
    SeatWithdrew,
    StageOpened,
)
from delivery_plane.gates import decided
from delivery_plane.identity import SCRIPTED_APPROVER
from delivery_plane.ledger import Fence
from delivery_plane.record import Record
from delivery_plane.rows import file_digest
from delivery_plane.seat.seat import Seat
from oracle import detector
from oracle.judge import decide_outcome, judge_acceptance, judge_stage
from scenarios.catalog import load_scenario, materialise
from scenarios.seats.catalog import SEATS
from scenarios.seats.turn import Turn
from stages.catalog import STAGE_OF
from stages.eval import Eval
from stages.jobs import BASE, base_name, model_of, nothing_to_train
from stages.stage import StageContext
from stages.train import Train
from workflows.approval import policy, shown, spend_approved
from workflows.messages import (
    AcceptanceReceipt,
    DeliveryReceipt,
    Desk,
    EvaluationOrder,
    Fault,
    FlagAnswered,
    FlagRequest,
    GateReceipt,
    GateState,
    SeatTurn,
    Silence,
)
from workflows.platform import Platform

HEARTBEAT_SECONDS = 5.0


class DeliveryActivities:
    """All activities of a delivery, on one platform. Which run here is decided by the worker's queue."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._ledger = platform.ledger

    # --- opening and closing

    @activity.defn
    def open_delivery(self, spec: DeliverySpec) -> None:
        """Record the engagement, its planted truth, and make its data ready."""
        scenario = load_scenario(spec.scenario)
        splits, planted = materialise(scenario, self._platform.home)
        seat = self._platform.identities.get_or_new(f"seat-{spec.seat}", "seat")
        folder = self._platform.home.delivery(spec.delivery_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "spec.json").write_text(spec.model_dump_json())
        bases = _bases(spec)
        opened = DeliveryOpened(
            scenario=scenario.name,
            scenario_version=scenario.version,
            scenario_digest=scenario.digest,
            certificate=None,
            brief_digest=sha256(scenario.brief.encode()),
            seat=spec.seat,
            seat_public_key=seat.public_key,
            plane=spec.plane,
            device=spec.device,
            seed=spec.seed,
            bases={name: model_digest(path) for name, (path, _) in bases.items()},
            base_licences={name: licence for name, (_, licence) in bases.items()},
            budget=scenario.budget,
            detector_mode="observe" if spec.on_flag is OnFlag.OBSERVE else "act",
            platform_version=__version__,
        )
        truth = PlantedTruth(
            metric=scenario.contract.metric,
            metric_synonyms=scenario.contract.metric_synonyms,
            contract_margin=scenario.contract.margin,
            alpha=scenario.contract.alpha,
            feasible=scenario.contract.feasible,
            permitted_licences=scenario.contract.permitted_licences,
            planted_rows=planted.rows,
            sealed_items=scenario.splits.sealed,
            sealed_digest=file_digest(splits.sealed),
            dev_digest=file_digest(splits.dev),
            probe_digest=file_digest(splits.probe),
        )
        with self._ledger.writing(spec.delivery_id) as writer:
            writer.fact(opened)
            writer.fact(truth)
            if spec.fault:
                writer.fact(FaultPlanted(fault=spec.fault))

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
        with _heartbeating(), self._visit(request) as visit:
            for fact in STAGE_OF[request.stage].prepare(visit.context):
                visit.append(fact)
            visit.append(StageOpened(stage=request.stage, attempt=request.attempt))

    @activity.defn
    def read_desk(self, request: StageRequest) -> Desk:
        """The claim of this visit, or what the seat asked for first."""
        record = self._ledger.record(request.delivery_id)
        answered = {fact.value.work_id for fact in record.facts(BudgetSettled)}
        answered |= {fact.value.work_id for fact in record.facts(BudgetReserved) if not fact.value.granted}
        found = next(
            (
                entry
                for entry in record.entries
                if entry.idempotency_key == f"claim:{request.stage}:{request.attempt}"
            ),
            None,
        )
        claim = found.claim() if found else None
        return Desk(
            claim_entry=found.number if found else None,
            action=claim.action
            if isinstance(claim, EvalClaim)
            else claim.decision
            if isinstance(claim, IntakeClaim)
            else None,
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
        with _heartbeating(), self._visit(request) as visit:
            record = visit.context.record
            first = record.entries[-1].number + 1
            paused = _paused_flag(record, request)
            if paused:
                return StageReceipt(first_entry=first, last_entry=first, ended="flagged", flag_id=paused)
            claim = next(
                entry.claim()
                for entry in record.entries
                if entry.idempotency_key == f"claim:{request.stage}:{request.attempt}"
            )
            facts = STAGE_OF[request.stage].execute(visit.context, claim)
            reply: Literal["stop"] | None = None
            flag_id = None
            try:
                while True:
                    fact = facts.send(reply)
                    reply = None
                    visit.append(fact)
                    raised = self._look(visit, fact)
                    if raised and raised.action == "paused":
                        flag_id, reply = raised.flag_id, "stop"
            except StopIteration:
                pass
            finally:
                facts.close()
        record = self._ledger.record(request.delivery_id)
        exhausted = any(
            not fact.value.granted for fact in record.facts(BudgetReserved, request.stage, request.attempt)
        ) or any(entry.payload.get("status") == "over_budget" for entry in record.entries)
        return StageReceipt(
            first_entry=first,
            last_entry=record.entries[-1].number,
            ended="flagged"
            if flag_id
            else "budget_exhausted"
            if exhausted
            else "nothing_to_train"
            if nothing_to_train(record)
            else "complete",
            flag_id=flag_id,
        )

    def _look(self, visit: "_Visit", fact: FactBase) -> FlagRaised | None:
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
        with self._visit(request) as visit:
            for fact in Train().end_paused(visit.context):
                visit.append(fact)

    @activity.defn
    def evaluate(self, order: EvaluationOrder) -> None:
        """One dev look that the seat asked for."""
        request = StageRequest(delivery_id=order.delivery_id, stage=StageName.EVAL, attempt=order.attempt)
        with _heartbeating(), self._visit(request) as visit:
            asked = next(
                fact.value
                for fact in visit.context.record.facts(EvaluationRequested)
                if fact.value.request_id == order.request_id
            )
            for fact in Eval().look(visit.context, asked.request_id, asked.candidate):
                visit.append(fact)

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
        before = len(self._ledger.entries(turn.delivery_id))
        identity = self._platform.identities.get(f"seat-{spec.seat}")
        brief = load_scenario(spec.scenario).brief
        seat = Seat(self._ledger, turn.delivery_id, identity, brief, wake=lambda: None)
        script.play(seat, Turn(turn.stage, turn.attempt, turn.flag_id, spec.on_flag))
        return len(self._ledger.entries(turn.delivery_id)) > before

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
        """The sealed paired test of the registered artifact, run by the operator's process."""
        request = StageRequest(
            delivery_id=delivery_id, stage=StageName.CARD, attempt=self._attempt(delivery_id)
        )
        with _heartbeating(), self._visit(request) as visit:
            context = visit.context
            artifact = context.record.last(ArtifactRegistered)
            if artifact is None:
                return AcceptanceReceipt(accepted=False)
            base_path = context.bases[base_name(context)]
            try:
                tuned = context.plane.evaluate(
                    ModelRef(base_path=base_path, checkpoint_path=context.folder / "artifact"),
                    context.splits.sealed,
                )
            except ComputeFault as fault:
                with contextlib.suppress(ComputeFault):
                    context.plane.evaluate(model_of(context, BASE), context.splits.sealed)
                    visit.append(_unmeasured("base_works", fault), key="acceptance:failed")
                    return AcceptanceReceipt(accepted=False)
                visit.append(_unmeasured("base_fails", fault), key="acceptance:failed")
                return AcceptanceReceipt(accepted=None)
            base = context.plane.evaluate(ModelRef(base_path=base_path), context.splits.sealed, cached=True)
            wins, losses, ties = tuned.against(base)
            visit.append(
                AcceptanceTested(
                    model_digest=tuned.model_digest,
                    base_digest=base.model_digest,
                    sealed_digest=tuned.items_digest,
                    items=len(tuned.correct),
                    wins=wins,
                    losses=losses,
                    ties=ties,
                    correct=sum(tuned.correct),
                    base_correct=sum(base.correct),
                    decoding_digest=tuned.decoding_digest,
                    template_digest=tuned.template_digest,
                ),
                key="acceptance:tested",
            )
        with self._ledger.writing(delivery_id) as writer:
            verdict = judge_acceptance(Record(writer.entries, for_oracle=True))
            if verdict is None:  # what was measured is not this delivery's test: never a zero
                return AcceptanceReceipt(accepted=None)
            writer.verdict("acceptance", verdict, stage=None, attempt=0)
            would_be = decide_outcome(Record(writer.entries, for_oracle=True), before_release=True)[0]
        self._ledger.checkpoint(delivery_id)
        return AcceptanceReceipt(accepted=would_be is Outcome.ACCEPTED)

    # --- shared

    def _attempt(self, delivery_id: str) -> int:
        visit = self._ledger.record(delivery_id).last(StageOpened)
        return visit.value.attempt if visit else 1

    @contextlib.contextmanager
    def _visit(self, request: StageRequest) -> Iterator["_Visit"]:
        """A stage's context, and a way to append its facts under a fresh fencing token."""
        spec = self._platform.spec(request.delivery_id)
        scenario = load_scenario(spec.scenario)
        splits, _ = materialise(scenario, self._platform.home)
        with self._ledger.writing(request.delivery_id) as writer:
            fence = writer.next_fence(f"{request.stage}:{request.attempt}")
            record = writer.record
        opened = record.last(DeliveryOpened)
        if opened is None or opened.value.scenario_digest != scenario.digest:
            raise LedgerFault(f"scenario {scenario.name} changed while {request.delivery_id} was open")
        plane = self._platform.plane
        if plane is None:
            raise ComputeFault("this worker has no compute plane")
        place = (request.stage, request.attempt)
        context = StageContext(
            spec=spec,
            attempt=request.attempt,
            scenario=scenario,
            splits=splits,
            record=record,
            plane=plane,
            folder=self._platform.home.delivery(request.delivery_id),
            bases={name: path for name, (path, _) in _bases(spec).items()},
            fence=fence.token,
            used=meter.used(record),
            reserved=meter.reserved(record),
            reserve=partial(self._reserve, request),
            settle=partial(self._settle, request),
            sealed_overlap=SealedOverlap(splits.sealed),
        )

        def append(fact: FactBase, key: str | None = None) -> None:
            self._ledger.fact(
                request.delivery_id, fact, key=key, stage=place[0], attempt=place[1], fence=fence
            )

        yield _Visit(context, append, fence)

    def _reserve(self, request: StageRequest, work_id: str, amounts: Amounts) -> bool:
        return meter.reserve(
            self._ledger, request.delivery_id, work_id, amounts, request.stage, request.attempt
        ).granted

    def _settle(self, request: StageRequest, work_id: str, amounts: Amounts) -> None:
        meter.settle(self._ledger, request.delivery_id, work_id, amounts, request.stage, request.attempt)


@dataclass(frozen=True)
class _Visit:
    context: StageContext
    append: Callable[..., None]
    fence: Fence


def _bases(spec: DeliverySpec) -> dict[str, tuple[Path, str]]:
    """Base models on offer: the scenario's, or the one the operator brought."""
    if spec.base:
        return {Path(spec.base).name: (Path(spec.base), "operator-provided")}
    return {base.name: (Path(base.path), base.licence) for base in load_scenario(spec.scenario).bases}


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


def _unmeasured(control: Literal["base_works", "base_fails"], fault: ComputeFault) -> MeasurementFailed:
    return MeasurementFailed(
        what="acceptance", subject="artifact", tries=2, control=control, error=str(fault)[:500]
    )


@contextlib.contextmanager
def _heartbeating() -> Iterator[None]:
    """Tell Temporal that this activity lives, from a thread, while it works."""
    if not activity.in_activity():
        yield
        return
    done = threading.Event()
    context = contextvars.copy_context()

    def beat() -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            activity.heartbeat()

    thread = threading.Thread(target=context.run, args=(beat,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
