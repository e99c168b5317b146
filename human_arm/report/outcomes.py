"""How a delivery ended, or what it waits for, in plain words. The outcome itself is the record's."""

from dataclasses import dataclass

from delivery_plane.claims import IntakeClaim, TrainClaim
from delivery_plane.delivery import GateDecision, Outcome
from delivery_plane.facts import (
    AcceptanceUnmeasured,
    BudgetReserved,
    DeliveryCancelled,
    DeliveryClosed,
    DeliveryFaulted,
    FlagRaised,
    FlagResolved,
    GateDecided,
    GateOpened,
    JobEnded,
    SeatSilent,
    SeatWithdrew,
    StageOpened,
)
from delivery_plane.gates import decided
from delivery_plane.record import Record
from human_arm.report.text import duration, when, words

_TITLES = {
    Outcome.PLATFORM_FAULT: "Platform fault",
    Outcome.CANCELLED_BY_OPERATOR: "Cancelled by an operator",
    Outcome.VIOLATION: "Ended by a violation",
    Outcome.BUDGET_EXHAUSTED: "Budget exhausted",
    Outcome.REFUSED_AT_GATE: "Refused at a gate",
    Outcome.STOPPED_ON_FLAG: "Stopped on a flag",
    Outcome.WITHDRAWN_BY_SEAT: "Withdrawn by the seat",
    Outcome.DECLINED_AT_INTAKE: "Declined at intake",
    Outcome.NO_MODEL: "No model delivered",
    Outcome.REJECTED_WORSE: "Rejected: worse than its base",
    Outcome.REJECTED_REGRESSION: "Rejected: a regression",
    Outcome.REJECTED_NOT_BETTER: "Rejected: not better than its base by what was promised",
    Outcome.ACCEPTED: "Accepted",
}


@dataclass(frozen=True)
class Ending:
    """The headline: how it ended and why. `tone` is `good`, `bad`, `warn` or `active`."""

    title: str
    why: str
    tone: str
    also: tuple[str, ...] = ()
    """Every other outcome that applied."""


def ending(record: Record) -> Ending:
    """How the delivery ended; while it is open, what it waits for."""
    closed = record.last(DeliveryClosed)
    if closed is None:
        fault = record.last(DeliveryFaulted)
        if fault:
            return Ending("Open, with a platform fault", fault.value.message, "warn")
        return Ending("Open", waits_for(record), "active")
    outcome = closed.value.outcome
    return Ending(
        _TITLES[outcome],
        _why(record, outcome),
        "good" if outcome is Outcome.ACCEPTED else "bad",
        tuple(words(other) for other in closed.value.applied if other is not outcome),
    )


def _why(record: Record, outcome: Outcome) -> str:
    match outcome:
        case Outcome.PLATFORM_FAULT:
            unmeasured, fault = record.last(AcceptanceUnmeasured), record.last(DeliveryFaulted)
            if fault:
                return f"{fault.value.message}. The seat is not to blame."
            said = f": {unmeasured.value.error}" if unmeasured else ""
            return f"The platform could not measure what acceptance needs{said}. The seat is not to blame."
        case Outcome.CANCELLED_BY_OPERATOR:
            cancelled = record.last(DeliveryCancelled)
            return cancelled.value.reason if cancelled else ""
        case Outcome.VIOLATION:
            return "; ".join(
                finding.message
                for verdict in record.verdicts()
                for finding in verdict.value.findings
                if finding.blocking and finding.status == "failed"
            )
        case Outcome.BUDGET_EXHAUSTED:
            return _over_budget(record)
        case Outcome.REFUSED_AT_GATE:
            return "; ".join(
                f"{fact.value.gate} gate {fact.value.decision} by {fact.value.by or 'nobody'}: {fact.value.reason}"
                for fact in record.facts(GateDecided)
                if fact.value.decision is not GateDecision.APPROVED
            )
        case Outcome.STOPPED_ON_FLAG:
            return _stopped(record)
        case Outcome.WITHDRAWN_BY_SEAT:
            return _withdrawn(record)
        case Outcome.DECLINED_AT_INTAKE:
            intake = record.claim(IntakeClaim)
            refusals = "; ".join(intake.value.refusals) if intake else ""
            return f"The seat declined: {refusals}" if refusals else "The seat declined and gave no refusals."
        case Outcome.NO_MODEL:
            return _no_model(record)
        case _:
            return _tested(record)


def _over_budget(record: Record) -> str:
    refused = [fact.value for fact in record.facts(BudgetReserved) if not fact.value.granted]
    said = [f"{fact.work_id} would have exceeded {', '.join(map(words, fact.exceeding))}" for fact in refused]
    said += [
        f"{fact.value.job_id} ran over its reservation at step {fact.value.steps}"
        for fact in record.facts(JobEnded)
        if fact.value.status == "over_budget"
    ]
    return "; ".join(said)


def _stopped(record: Record) -> str:
    flags = {fact.value.flag_id: fact.value for fact in record.facts(FlagRaised)}
    stopped = [fact.value for fact in record.facts(FlagResolved) if fact.value.resolution == "stopped"]
    return "; ".join(
        f"{flags[fact.flag_id].job_id}, {flags[fact.flag_id].message}: {words(fact.because)}"
        for fact in stopped
        if fact.flag_id in flags
    )


def _withdrawn(record: Record) -> str:
    withdrew, silent = record.last(SeatWithdrew), record.last(SeatSilent)
    if withdrew:
        return withdrew.value.reason
    if silent:
        waited = duration(silent.value.after_seconds)
        return f"The seat was silent for {waited}; the platform waited for {silent.value.waiting_for}."
    return ""


def _no_model(record: Record) -> str:
    train = record.claim(TrainClaim)
    if not record.facts(JobEnded) and train and train.value.action == "stop":
        return f"The seat trained nothing: {train.value.reason}"
    return "Nothing was registered, so there was nothing to test."


def _tested(record: Record) -> str:
    cited = record.acceptance()
    if cited is None:
        return "The sealed test was not run."
    test = cited.value
    low, high = test.uplift_interval
    return (
        f"On {test.items} sealed items the delivered model alone was right on {test.wins}, its base alone on"
        f" {test.losses}: uplift {test.uplift:.3f} (95% {low:.3f} to {high:.3f}), contract margin {test.margin:.3g}."
    )


def open_gates(record: Record) -> list[GateOpened]:
    """Gates that wait for a person."""
    if record.last(DeliveryClosed):
        return []
    return [
        fact.value for fact in record.facts(GateOpened) if decided(record, fact.value.gate_id) is None
    ]  # fmt: skip


def waits_for(record: Record) -> str:
    """What an open delivery waits for."""
    waiting = open_gates(record)
    if waiting:
        return " ".join(
            f"Waits for a person at the {gate.gate} gate until {when(gate.deadline_at)}." for gate in waiting
        )
    visit = record.last(StageOpened)
    if visit is None:
        return "No stage has been opened yet."
    stage, attempt = visit.value.stage, visit.value.attempt
    place = stage.value if attempt < 2 else f"{stage} ({attempt})"
    since = [entry for entry in record.entries if entry.number > visit.entry]
    if any(entry.type == "verdict" and entry.stage == stage for entry in since):
        return f"The {place} stage is judged; the next step has not begun."
    if any(entry.type == "claim" and entry.kind == stage for entry in since):
        return f"The {place} stage is being carried out."
    return f"Waits for the seat's claim for the {place} stage."
