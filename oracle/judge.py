"""Verdicts from a delivery's record: stages, the sealed test, the outcome, and all of them judged again.

Same entries, same verdict: there is no clock here, nothing is read or written, and what was planted is hidden.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from delivery_plane.claims import IntakeClaim
from delivery_plane.delivery import (
    STAGE_CLASS,
    STAGES,
    GateDecision,
    GateKind,
    Outcome,
    StageName,
    VerdictStatus,
    first_outcome,
)
from delivery_plane.entry import Entry, canonical
from delivery_plane.errors import BadInput
from delivery_plane.facts import (
    AcceptanceTested,
    AcceptanceUnmeasured,
    ArtifactRegistered,
    BudgetReserved,
    DeliveryCancelled,
    DeliveryClosed,
    DeliveryFaulted,
    DeliveryOpened,
    FlagResolved,
    GateDecided,
    JobEnded,
    PlantedTruth,
    SeatSilent,
    SeatWithdrew,
)
from delivery_plane.record import Record
from delivery_plane.verdicts import Acceptance, AcceptanceDecision, Finding, StageVerdict
from oracle.acceptance import decide
from oracle.rules import RULES
from oracle.rules.rule import Rule, Visit, examine

ACCEPTANCE_NEEDS = (StageName.REGISTER,)
"""Stages in which nothing may be unscored if a delivery is to be accepted."""

LATER = 10**9
"""Above any release's number."""

_BY_DECISION = {
    AcceptanceDecision.REJECT_WORSE: Outcome.REJECTED_WORSE,
    AcceptanceDecision.REJECT_REGRESSION: Outcome.REJECTED_REGRESSION,
    AcceptanceDecision.REJECT_NOT_BETTER: Outcome.REJECTED_NOT_BETTER,
}


def judge_stage(record: Record, stage: StageName, attempt: int) -> StageVerdict:
    """Every rule's finding on one stage visit, and their summary. `record` ends where the visit ends."""
    record = _for_oracle(record)
    visit = Visit(stage, attempt)
    findings = tuple(examine(rule, record, visit) for rule in RULES[stage] if _in_force(rule, record))
    return StageVerdict(
        stage=stage,
        attempt=attempt,
        stage_class=STAGE_CLASS[stage],
        status=_summary(findings),
        findings=findings,
    )


def _in_force(rule: Rule, record: Record) -> bool:
    """Whether a rule existed when the delivery was opened: a later one would ask for facts nobody recorded."""
    opened = record.last(DeliveryOpened)
    return opened is None or _release(rule.since) <= _release(opened.value.platform_version)


def _release(version: str) -> tuple[int, ...]:
    """A release's number; what is none counts as later than all."""
    parts = version.split(".")[:3]
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else (LATER,)


def _for_oracle(record: Record) -> Record:
    return Record(record.entries, for_oracle=True)


def _summary(findings: Sequence[Finding]) -> VerdictStatus:
    statuses = {finding.status for finding in findings}
    if "failed" in statuses:
        return VerdictStatus.FAILED
    return VerdictStatus.UNSCORED if "unscored" in statuses else VerdictStatus.PASSED


def latest_statuses(record: Record) -> dict[StageName, VerdictStatus]:
    """Each stage's result by its latest attempt, in delivery order; `not_reached` where there is no verdict."""
    statuses = dict.fromkeys(STAGES, VerdictStatus.NOT_REACHED)
    for verdict in record.verdicts():
        statuses[verdict.value.stage] = verdict.value.status
    return statuses


def judge_acceptance(record: Record) -> Acceptance | None:
    """The sealed test's decision; None when it was not run, or what was run is not this delivery's test.

    It has to be of the registered artifact, on the sealed set the delivery was opened with, with counts
    that add up. Anything else was not measured, which is never a zero.
    """
    record = _for_oracle(record)
    tested, truth = record.last(AcceptanceTested), record.last(PlantedTruth)
    artifact = record.last(ArtifactRegistered)
    if tested is None or truth is None or artifact is None:
        return None
    counts, contract = tested.value, truth.value
    measured = (
        counts.items > 0
        and min(counts.wins, counts.losses, counts.ties) >= 0
        and counts.wins + counts.losses + counts.ties == counts.items
        and counts.correct - counts.base_correct == counts.wins - counts.losses
        and counts.sealed_digest == contract.sealed_digest
        and counts.model_digest == artifact.value.model_digest
        and counts.base_digest == artifact.value.base_digest
    )
    if not measured:
        return None
    return decide(
        counts.wins, counts.losses, counts.ties, alpha=contract.alpha, margin=contract.contract_margin
    )


def decide_outcome(record: Record, *, before_release: bool = False) -> tuple[Outcome, tuple[Outcome, ...]]:
    """The one outcome, and all that applied in order of precedence, from facts and recorded verdicts.

    `before_release`: as if the release gate, not yet decided, were approved.
    """
    record = _for_oracle(record)
    applied = set(_endings(record))
    if not applied:
        applied = {_tested(record, before_release)}
    ordered = tuple(outcome for outcome in Outcome if outcome in applied)
    return first_outcome(applied), ordered


def _endings(record: Record) -> Iterator[Outcome]:
    """Outcomes that do not depend on the sealed test, plus what a sealed test that was run said."""
    if record.facts(DeliveryFaulted):
        yield Outcome.PLATFORM_FAULT
    if record.facts(DeliveryCancelled):
        yield Outcome.CANCELLED_BY_OPERATOR
    if any(verdict.value.blocked for verdict in record.verdicts()):
        yield Outcome.VIOLATION
    over_budget = any(job.value.status == "over_budget" for job in record.facts(JobEnded))
    if over_budget or any(not reserved.value.granted for reserved in record.facts(BudgetReserved)):
        yield Outcome.BUDGET_EXHAUSTED
    if any(_refused(record, kind) for kind in (GateKind.SPEND, GateKind.RELEASE)):
        yield Outcome.REFUSED_AT_GATE
    if _stopped_on_flag(record):
        yield Outcome.STOPPED_ON_FLAG
    if record.last(SeatWithdrew) is not None or record.last(SeatSilent) is not None:
        yield Outcome.WITHDRAWN_BY_SEAT
    intake = record.claim(IntakeClaim)
    if intake is not None and intake.value.decision == "decline":
        yield Outcome.DECLINED_AT_INTAKE
    if not record.facts(ArtifactRegistered):
        yield Outcome.NO_MODEL
    acceptance = _acceptance(record)
    if acceptance is not None and acceptance.decision in _BY_DECISION:
        yield _BY_DECISION[acceptance.decision]


def _acceptance(record: Record) -> Acceptance | None:
    recorded = record.acceptance()
    return recorded.value if recorded is not None else judge_acceptance(record)


def _tested(record: Record, before_release: bool) -> Outcome:
    """The outcome of a delivery that nothing ended before its sealed test, and that was not rejected by it."""
    if _acceptance(record) is None:
        unmeasured = record.last(AcceptanceUnmeasured)
        # The base answered and the delivered model could not: it was not shown to be better.
        candidate_failed = unmeasured is not None and unmeasured.value.control == "base_works"
        return Outcome.REJECTED_NOT_BETTER if candidate_failed else Outcome.PLATFORM_FAULT
    statuses = {verdict.value.stage: verdict.value for verdict in record.verdicts()}
    for stage in ACCEPTANCE_NEEDS:
        verdict = statuses.get(stage)
        if verdict is None or any(finding.status == "unscored" for finding in verdict.findings):
            return Outcome.PLATFORM_FAULT
    released = before_release or _last_decision(record, GateKind.RELEASE) == GateDecision.APPROVED
    return Outcome.ACCEPTED if released else Outcome.PLATFORM_FAULT


def _last_decision(record: Record, kind: GateKind) -> GateDecision | None:
    decisions = [gate.value.decision for gate in record.facts(GateDecided) if gate.value.gate == kind]
    return decisions[-1] if decisions else None


def _refused(record: Record, kind: GateKind) -> bool:
    """Whether the latest decision of this kind of gate was a refusal; no decision in time is one."""
    return _last_decision(record, kind) in (GateDecision.REJECTED, GateDecision.EXPIRED)


def _stopped_on_flag(record: Record) -> bool:
    """Whether a job stopped on a flag was the last word: no later job completed, and no other job's
    completed model was registered after it."""
    stopped = [item.entry for item in record.facts(FlagResolved) if item.value.resolution == "stopped"]
    if not stopped:
        return False
    completed = [job for job in record.facts(JobEnded) if job.value.status == "completed"]
    names = {job.value.job_id for job in completed}
    went_on = [job.entry for job in completed]
    went_on += [item.entry for item in record.facts(ArtifactRegistered) if item.value.parent_job in names]
    return max(went_on, default=0) < stopped[-1]


@dataclass(frozen=True)
class Difference:
    """One thing in the record that judging again does not confirm."""

    entry: int
    what: str
    recorded: str
    rejudged: str


def rejudge(entries: Sequence[Entry]) -> list[Difference]:
    """Judge again every recorded verdict, and the closing outcome, from the entries before it.

    Empty: identical, byte for byte in canonical form. Payloads that are no verdicts are differences too.
    """
    differences: list[Difference] = []
    for place, entry in enumerate(entries):
        try:
            differences += _differences(Record(entries[:place], for_oracle=True), entry)
        except (ValidationError, BadInput):
            differences.append(Difference(entry.number, entry.kind, "rests on unreadable entries", "none"))
    return differences


def _differences(before: Record, entry: Entry) -> list[Difference]:
    if entry.type == "verdict" and entry.kind == "stage":
        return _stage_differences(before, entry)
    if entry.type == "verdict" and entry.kind == "acceptance":
        judged = judge_acceptance(before)
        again = None if judged is None else judged.model_dump(mode="json")
        return _compare(entry, "acceptance", entry.payload, again)
    if entry.type == "fact" and entry.kind == "delivery_closed":
        return _closing_differences(before, entry)
    return []


def _stage_differences(before: Record, entry: Entry) -> list[Difference]:
    if entry.stage is None:
        return [Difference(entry.number, "stage verdict", "of no stage", "of a stage")]
    again = judge_stage(before, entry.stage, entry.attempt).model_dump(mode="json")
    recorded = entry.payload
    if canonical(recorded) == canonical(again):
        return []
    what = f"{entry.stage} attempt {entry.attempt}"
    old, new = _by_rule(recorded.get("findings")), _by_rule(again["findings"])
    found: list[Difference] = []
    for rule in dict.fromkeys([*new, *old]):
        found += _compare(entry, f"{what}: {rule}", old.get(rule), new.get(rule))
    for name in dict.fromkeys([*again, *recorded]):
        if name != "findings":
            found += _compare(entry, f"{what}: {name}", recorded.get(name), again.get(name))
    # Same findings in another order, or one of them twice, differ in no rule and no other field.
    return found or _compare(entry, f"{what}: findings", recorded.get("findings"), again["findings"])


def _by_rule(findings: Any) -> dict[str, Any]:
    """Findings as recorded, by their rule's name; whatever is no finding is left out."""
    if not isinstance(findings, list):
        return {}
    return {str(item.get("rule")): item for item in findings if isinstance(item, dict)}


def _closing_differences(before: Record, entry: Entry) -> list[Difference]:
    closed = entry.fact()
    outcome, applied = decide_outcome(before)
    if not isinstance(closed, DeliveryClosed):
        return [Difference(entry.number, "outcome", closed.kind, "delivery_closed")]
    return _compare(entry, "outcome", str(closed.outcome), str(outcome)) + _compare(
        entry,
        "outcomes that applied",
        [str(item) for item in closed.applied],
        [str(item) for item in applied],
    )


def _compare(entry: Entry, what: str, recorded: Any, again: Any) -> list[Difference]:
    old, new = canonical(recorded), canonical(again)
    return [] if old == new else [Difference(entry.number, what, old.decode(), new.decode())]
