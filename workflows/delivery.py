"""The durable order of one delivery: stages, claims, gates, flags, acceptance. It carries receipts, never facts."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from delivery_plane.delivery import (
        STAGES,
        ApproverMode,
        DeliverySpec,
        GateDecision,
        GateKind,
        GateRequest,
        StageName,
        StageReceipt,
        StageRequest,
    )
    from workflows.activities import DeliveryActivities as Do
    from workflows.messages import (
        COMPUTE_QUEUE,
        COMPUTE_STAGES,
        GOVERNANCE_QUEUE,
        HEARTBEAT_TIMEOUT_SECONDS,
        PREFLIGHTS,
        DeliveryReceipt,
        Desk,
        EvaluationOrder,
        Fault,
        FlagRequest,
        SeatTurn,
        Silence,
    )

_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))


class _Ended(Exception):
    """The delivery is over before its last stage; the ledger says why."""


@workflow.defn(name="delivery")
class DeliveryWorkflow:
    """One delivery, from opening to outcome."""

    def __init__(self) -> None:
        self._news = 0
        self._seen = 0
        self._preflights_failed = 0
        self._spec: DeliverySpec

    @workflow.update
    async def wake(self) -> None:
        """The ledger has news. Carries no authority: whatever it is gets read from the ledger."""
        self._news += 1

    @workflow.run
    async def run(self, spec: DeliverySpec) -> DeliveryReceipt:
        """Drive the delivery and close it, whatever happens on the way."""
        self._spec = spec
        try:
            await self._do(Do.open_delivery, spec)
            await self._deliver()
        except _Ended:
            pass
        except (ActivityError, asyncio.CancelledError) as error:
            fault = _fault(spec.delivery_id, error)
            await asyncio.shield(self._do(Do.record_fault, fault))
        return await asyncio.shield(self._do(Do.close_delivery, spec.delivery_id))

    async def _deliver(self) -> None:
        attempt, position = 1, 0
        while position < len(STAGES):
            stage = STAGES[position]
            request = StageRequest(delivery_id=self._spec.delivery_id, stage=stage, attempt=attempt)
            reopen = await self._visit(request)
            if reopen is None:
                position += 1
            else:
                position, attempt = STAGES.index(reopen), attempt + 1
        accepted = await self._do(Do.accept, self._spec.delivery_id, queue=COMPUTE_QUEUE, hours=2)
        if accepted.accepted:
            await self._gate(GateKind.RELEASE, attempt)

    async def _visit(self, request: StageRequest) -> StageName | None:
        """One visit of one stage. Returns the stage to reopen, if any. Raises _Ended."""
        stage = request.stage
        queue = COMPUTE_QUEUE if stage in COMPUTE_STAGES else GOVERNANCE_QUEUE
        await self._do(Do.open_stage, request)
        desk = await self._claim(request)
        receipt = await self._do(Do.run_stage, request, queue=queue, hours=240)
        answer = None
        while receipt.ended == "flagged":
            answer = await self._flag(request, receipt)
            if answer == "continue":
                receipt = await self._do(Do.run_stage, request, queue=queue, hours=240)
            else:
                await self._do(Do.end_paused, request, queue=queue)
                break
        verdict = await self._local(Do.judge_stage, request)
        if verdict.blocked or receipt.ended in ("budget_exhausted", "nothing_to_train") or answer == "stop":
            raise _Ended
        if receipt.ended == "preflight_failed":
            self._preflights_failed += 1
            if self._preflights_failed == PREFLIGHTS:
                raise _Ended
            return StageName.CONFIG
        if answer == "switch":
            return StageName.PLAN
        if stage is StageName.INTAKE and desk.action == "decline":
            raise _Ended
        if stage is StageName.SCHEDULE and not await self._gate(GateKind.SPEND, request.attempt):
            raise _Ended
        if stage is StageName.EVAL:
            return {"continue": StageName.CONFIG, "switch": StageName.PLAN}.get(desk.action or "")
        return None

    async def _claim(self, request: StageRequest) -> Desk:
        """Wait for the seat's claim, answering what it asks for meanwhile. Raises _Ended."""
        limit = self._spec.deadlines.claim_seconds
        deadline = workflow.now() + timedelta(seconds=limit)
        while True:
            self._seen = self._news
            desk: Desk = await self._local(Do.read_desk, request)
            if desk.withdrawn:
                raise _Ended
            if desk.evaluations:
                for look in desk.evaluations:
                    order = EvaluationOrder(
                        delivery_id=request.delivery_id, attempt=request.attempt, request_id=look
                    )
                    receipt = await self._do(Do.evaluate, order, queue=COMPUTE_QUEUE, hours=24)
                    if not receipt.granted:
                        raise _Ended
                continue
            if desk.claim_entry is not None:
                return desk
            turn = SeatTurn(delivery_id=request.delivery_id, stage=request.stage, attempt=request.attempt)
            if not await self._seat_moves(turn, (deadline - workflow.now()).total_seconds()):
                silence = Silence(
                    delivery_id=request.delivery_id, waiting_for=request.stage, after_seconds=limit
                )
                await self._do(Do.record_silence, silence)
                raise _Ended

    async def _seat_moves(self, turn: SeatTurn, seconds: float) -> bool:
        """Let a scripted seat play, or wait for news of another. False: the time is up."""
        if seconds <= 0:
            return False
        if await self._do(Do.drive_seat, turn, hours=1):
            return True
        return await self._news_within(seconds)

    async def _flag(self, request: StageRequest, receipt: StageReceipt) -> str:
        """Settle a flag: `continue` (a person approved), `stop` or `switch`."""
        assert receipt.flag_id
        flag = FlagRequest(delivery_id=request.delivery_id, attempt=request.attempt, flag_id=receipt.flag_id)
        turn = SeatTurn(
            delivery_id=request.delivery_id,
            stage=request.stage,
            attempt=request.attempt,
            flag_id=flag.flag_id,
        )
        deadline = workflow.now() + timedelta(seconds=self._spec.deadlines.flag_seconds)
        while True:
            self._seen = self._news
            answer = (await self._local(Do.read_flag, flag)).action
            if answer or not await self._seat_moves(turn, (deadline - workflow.now()).total_seconds()):
                break
        if answer == "continue":
            approved = await self._gate(GateKind.FLAG, request.attempt, flag.flag_id)
            because = "gate_approved" if approved else "gate_refused"
        else:
            because = "seat_stopped" if answer else "seat_silent"
        await self._do(Do.resolve_flag, flag.model_copy(update={"because": because}))
        if answer == "continue":
            return "continue" if approved else "stop"
        return answer or "stop"

    async def _gate(self, kind: GateKind, attempt: int, subject: str | None = None) -> bool:
        """Open a gate and wait for a person. Whether it was approved in time."""
        seconds = {
            GateKind.SPEND: self._spec.deadlines.spend_seconds,
            GateKind.FLAG: self._spec.deadlines.flag_seconds,
            GateKind.RELEASE: self._spec.deadlines.release_seconds,
        }[kind]
        name = "-".join(filter(None, (self._spec.delivery_id, kind.value, subject or str(attempt))))
        request = GateRequest(
            delivery_id=self._spec.delivery_id,
            gate_id=name,
            kind=kind,
            attempt=attempt,
            deadline_seconds=seconds,
            subject=subject,
        )
        receipt = await self._do(Do.open_gate, request)
        if not receipt.needed:
            return True
        deadline = workflow.now() + timedelta(seconds=receipt.seconds_left)
        if self._spec.approver is ApproverMode.AUTO:
            await self._do(Do.decide_by_policy, request)
        while True:
            self._seen = self._news
            state = await self._local(Do.read_gate, request)
            if state.decision is not None:
                return bool(state.decision is GateDecision.APPROVED)
            if not await self._news_within((deadline - workflow.now()).total_seconds()):
                await self._do(Do.expire_gate, request)

    async def _news_within(self, seconds: float) -> bool:
        try:
            await workflow.wait_condition(
                lambda: self._news > self._seen, timeout=timedelta(seconds=max(0.0, seconds))
            )
        except TimeoutError:
            return False
        return True

    def _do(
        self, activity: Any, argument: Any, *, queue: str = GOVERNANCE_QUEUE, hours: float = 1
    ) -> Awaitable[Any]:
        return workflow.execute_activity_method(
            activity,
            argument,
            task_queue=queue,
            start_to_close_timeout=timedelta(hours=hours),
            heartbeat_timeout=timedelta(seconds=HEARTBEAT_TIMEOUT_SECONDS),
            retry_policy=_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )

    def _local(self, activity: Any, argument: Any) -> Awaitable[Any]:
        return workflow.execute_local_activity_method(
            activity, argument, start_to_close_timeout=timedelta(seconds=60), retry_policy=_RETRY
        )


def _fault(delivery_id: str, error: BaseException) -> Fault:
    if is_cancelled_exception(error):
        return Fault(delivery_id=delivery_id, cancelled=True, boundary="operator", message="cancelled")
    cause = error.__cause__ if isinstance(error, ActivityError) else error
    boundary = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    return Fault(delivery_id=delivery_id, cancelled=False, boundary=boundary, message=str(cause)[:1000])
