"""What an approver is shown at each gate, built from facts, and the scripted approver's policy."""

import json
from typing import Literal

from delivery_plane import meter
from delivery_plane.claims import ConfigClaim, PlanClaim
from delivery_plane.delivery import Amounts, GateDecision, GateKind, GateRequest
from delivery_plane.facts import (
    ArtifactRegistered,
    ConfigRendered,
    DataSelected,
    DeliveryOpened,
    FlagRaised,
    GateDecided,
    GateOpened,
    ScheduleQuoted,
)
from delivery_plane.record import Record

Decision = tuple[Literal[GateDecision.APPROVED, GateDecision.REJECTED], str]


def shown(record: Record, request: GateRequest) -> str:
    """The exact text of a gate: what will run or be released, what it costs, and the seat's words apart."""
    builders = {GateKind.SPEND: _spend, GateKind.FLAG: _flag, GateKind.RELEASE: _release}
    opened = record.last(DeliveryOpened)
    assert opened
    content = {
        "gate": request.gate_id,
        "delivery": request.delivery_id,
        "scenario": opened.value.scenario,
        "seat": opened.value.seat,
        **builders[request.kind](record, request),
        "budget": opened.value.budget.model_dump(),
        "used_so_far": meter.used(record).model_dump(),
    }
    return json.dumps(content, indent=2, sort_keys=False, ensure_ascii=True)


def _spend(record: Record, request: GateRequest) -> dict[str, object]:  # noqa: ARG001 - one signature
    quoted, rendered = record.last(ScheduleQuoted), record.last(ConfigRendered)
    selected, plan, config = (
        record.last(DataSelected),
        record.claim(PlanClaim),
        record.claim(ConfigClaim),
    )
    offer = quoted.value.offer if quoted else None
    return {
        "decide": "spend this on training?",
        "quote": offer.model_dump() if offer else None,
        "cheapest_usd": quoted.value.cheapest_usd if quoted else None,
        "job": config.value.model_dump(mode="json") if config else None,
        "job_digest": rendered.value.job_digest if rendered else None,
        "training_rows": selected.value.rows_out if selected else None,
        "rows_with_issues": {kind: found.count for kind, found in selected.value.remaining.items()}
        if selected
        else None,
        "base": plan.value.base if plan else None,
    }


def _flag(record: Record, request: GateRequest) -> dict[str, object]:
    flag = next(fact.value for fact in record.facts(FlagRaised) if fact.value.flag_id == request.subject)
    answer = record.flag_answer(flag.flag_id)
    return {
        "decide": "let the flagged job go on?",
        "flag": flag.model_dump(mode="json"),
        "the_seat_says": answer.value.reason if answer else None,
    }


def _release(record: Record, request: GateRequest) -> dict[str, object]:  # noqa: ARG001 - one signature
    artifact, acceptance = record.last(ArtifactRegistered), record.acceptance()
    assert artifact
    assert acceptance
    return {
        "decide": "release this model to the customer and pay?",
        "model_digest": artifact.value.model_digest,
        "base_digest": artifact.value.base_digest,
        "acceptance": acceptance.value.model_dump(mode="json"),
        "invoice": meter.used(record).model_dump(),
    }


def approved_usd(record: Record) -> float | None:
    """The highest spend that a person approved so far, in US dollars; None: nothing was approved."""
    approved = {
        fact.value.gate_id
        for fact in record.facts(GateDecided)
        if fact.value.gate is GateKind.SPEND and fact.value.decision is GateDecision.APPROVED
    }
    totals = []
    for fact in record.facts(GateOpened):
        if fact.value.gate_id in approved:
            content = json.loads(fact.value.shown)
            if content["quote"]:
                totals.append(content["quote"]["usd"] + content["used_so_far"]["usd"])
    return max(totals) if totals else None


def spend_approved(record: Record) -> bool:
    """Whether what was used plus the present quote stays within an approved spend."""
    quoted, ceiling = record.last(ScheduleQuoted), approved_usd(record)
    if ceiling is None or quoted is None or quoted.value.offer is None:
        return False
    return meter.used(record).usd + quoted.value.offer.usd <= ceiling


def policy(record: Record, request: GateRequest) -> Decision:
    """The scripted approver: quotes within budget and accepted releases; never past a flag."""
    if request.kind is GateKind.FLAG:
        return GateDecision.REJECTED, "policy: no job goes on past a flag"
    if request.kind is GateKind.RELEASE:
        return GateDecision.APPROVED, "policy: accepted by the sealed test"
    quoted = record.last(ScheduleQuoted)
    offer = quoted.value.offer if quoted else None
    if offer is None or not offer.feasible:
        return GateDecision.REJECTED, "policy: no feasible quote"
    wanted = Amounts(usd=offer.usd, gpu_seconds=offer.gpu_seconds, wall_seconds=offer.wall_seconds)
    exceeding = wanted.exceeding(meter.left(record))
    if exceeding:
        return GateDecision.REJECTED, f"policy: the quote exceeds what is left of {', '.join(exceeding)}"
    return GateDecision.APPROVED, "policy: the quote is within the budget"
