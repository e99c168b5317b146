"""Stage verdicts, the sealed test, the outcome's precedence, and judging a whole record again."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import (
    Builder,
    artifact,
    changed,
    ended,
    gate,
    healthy_record,
    opening,
    play,
    played,
    sealed_test,
    without,
)

from delivery_plane.delivery import STAGES, Amounts, GateDecision, GateKind, Outcome, StageName, VerdictStatus
from delivery_plane.entry import Entry
from delivery_plane.facts import (
    AcceptanceUnmeasured,
    BudgetReserved,
    DeliveryCancelled,
    DeliveryFaulted,
    FactBase,
    FaultPlanted,
    FlagResolved,
    SeatSilent,
    SeatWithdrew,
)
from delivery_plane.record import Record
from delivery_plane.verdicts import AcceptanceDecision
from oracle.judge import decide_outcome, judge_acceptance, judge_stage, latest_statuses, rejudge

HEALTHY = healthy_record()
TRAIN, REGISTER, CARD = StageName.TRAIN, StageName.REGISTER, StageName.CARD


def outcome(entries: Sequence[Entry], **options: Any) -> tuple[Outcome, tuple[Outcome, ...]]:
    return decide_outcome(Record(entries), **options)


def delivered(wins: int, losses: int, *, decision: GateDecision | None = None) -> list[Entry]:
    """A delivery through its sealed test, and its release gate if it comes to that."""
    b = Builder(played(CARD))
    b.fact(sealed_test(wins, losses), CARD, 1)
    b.accept()
    if decision:
        b.fact(gate("release-1", GateKind.RELEASE, decision))
    return b.entries


def flag_stopped() -> FlagResolved:
    return FlagResolved(flag_id="job-1-step-40", resolution="stopped", because="seat_stopped")


# --- stage verdicts


def test_a_healthy_delivery_passes_every_stage() -> None:
    assert set(latest_statuses(Record(HEALTHY)).values()) == {VerdictStatus.PASSED}


def test_a_stage_that_was_not_reached_is_neither_passed_nor_failed() -> None:
    statuses = latest_statuses(Record(played(StageName.PLAN)))
    assert list(statuses) == list(STAGES)
    assert [status for status in statuses.values() if status != "not_reached"] == ["passed", "passed"]


def test_only_the_latest_attempt_counts_as_a_stages_status() -> None:
    b = Builder(played(StageName.SCHEDULE))
    play(b, TRAIN, judged=False)
    b = Builder(changed(b.entries, "job_ended", status="stopped"))
    b.judge(TRAIN)
    assert latest_statuses(b.record)[TRAIN] is VerdictStatus.FAILED
    play(b, TRAIN, attempt=2)
    assert latest_statuses(b.record)[TRAIN] is VerdictStatus.PASSED


def test_failed_outweighs_unscored_which_outweighs_passed() -> None:
    entries = played(TRAIN, judged=False)
    no_probes = without(entries, "probe_observed")
    assert judge_stage(Record(entries), TRAIN, 1).status is VerdictStatus.PASSED
    assert judge_stage(Record(no_probes), TRAIN, 1).status is VerdictStatus.UNSCORED
    failed = judge_stage(Record(changed(no_probes, "job_ended", status="stopped")), TRAIN, 1)
    assert failed.status is VerdictStatus.FAILED
    assert not failed.blocked
    blocked = judge_stage(Record(changed(entries, "job_started", dataset_digest="0" * 64)), TRAIN, 1)
    assert blocked.blocked
    assert blocked.stage_class == "E"


def test_what_was_planted_is_hidden_from_the_judge() -> None:
    b = Builder(played(TRAIN, judged=False))
    before = judge_stage(Record(b.entries), TRAIN, 1)
    b.fact(FaultPlanted(fault="frozen_adapter"))
    assert judge_stage(Record(b.entries), TRAIN, 1) == before


# --- the sealed test


def test_acceptance_comes_from_the_counts_and_the_contract() -> None:
    verdict = judge_acceptance(Record(HEALTHY))
    assert verdict
    assert verdict.decision is AcceptanceDecision.ACCEPT
    assert (verdict.alpha, verdict.margin, verdict.items) == (0.01, 0.30, 400)


@pytest.mark.parametrize("kind", ["acceptance_tested", "planted_truth", "artifact_registered"])
def test_acceptance_is_absent_without_its_facts(kind: str) -> None:
    assert judge_acceptance(Record(without(HEALTHY, kind))) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"items": 0, "wins": 0, "losses": 0, "ties": 0},
        {"ties": 1},
        {"wins": 300, "ties": 95},
        {"losses": -5, "ties": 195},
        {"sealed_digest": "0" * 64},
        {"model_digest": "0" * 64},
        {"base_digest": "0" * 64},
    ],
)
def test_a_test_of_something_else_is_no_test(changes: dict[str, Any]) -> None:
    entries = without(changed(HEALTHY, "acceptance_tested", **changes), "acceptance", "delivery_closed")
    assert judge_acceptance(Record(entries)) is None
    assert outcome(entries)[0] is Outcome.PLATFORM_FAULT


# --- outcomes


def test_accepted_alone_applies_to_a_healthy_delivery() -> None:
    assert outcome(HEALTHY[:-1]) == (Outcome.ACCEPTED, (Outcome.ACCEPTED,))


def test_before_release_an_accepted_delivery_is_only_accepted_in_prospect() -> None:
    entries = delivered(210, 5)
    assert outcome(entries)[0] is Outcome.PLATFORM_FAULT
    assert outcome(entries, before_release=True)[0] is Outcome.ACCEPTED
    assert outcome(delivered(10, 5), before_release=True)[0] is Outcome.REJECTED_NOT_BETTER


@pytest.mark.parametrize(
    ("wins", "losses", "expected"),
    [
        (10, 8, Outcome.REJECTED_NOT_BETTER),
        (100, 0, Outcome.REJECTED_NOT_BETTER),
        (5, 90, Outcome.REJECTED_WORSE),
    ],
)
def test_a_rejected_model_is_rejected_for_what_it_is(wins: int, losses: int, expected: Outcome) -> None:
    assert outcome(delivered(wins, losses)) == (expected, (expected,))


@pytest.mark.parametrize("decision", [GateDecision.REJECTED, GateDecision.EXPIRED])
def test_a_release_that_is_refused_is_a_refusal(decision: GateDecision) -> None:
    assert outcome(delivered(210, 5, decision=decision))[0] is Outcome.REFUSED_AT_GATE


def test_a_regression_keeps_its_own_outcome() -> None:
    entries = changed(delivered(210, 5), "acceptance", decision="reject_regression")
    assert outcome(entries)[0] is Outcome.REJECTED_REGRESSION


def test_a_declined_engagement() -> None:
    entries = changed(played(StageName.INTAKE), "intake", decision="decline")
    assert outcome(entries) == (
        Outcome.DECLINED_AT_INTAKE,
        (Outcome.DECLINED_AT_INTAKE, Outcome.NO_MODEL),
    )


def test_a_delivery_without_an_artifact_has_no_model() -> None:
    assert outcome(played(StageName.EVAL)) == (Outcome.NO_MODEL, (Outcome.NO_MODEL,))


def test_an_unscored_registration_is_never_accepted() -> None:
    b = Builder(without(played(CARD, judged=False), "eval"))
    b.judge(REGISTER)
    b.fact(sealed_test(), CARD, 1)
    b.accept()
    b.fact(gate("release-1", GateKind.RELEASE, GateDecision.APPROVED))
    assert outcome(b.entries)[0] is Outcome.PLATFORM_FAULT


@pytest.mark.parametrize(
    ("control", "expected"),
    [("base_works", Outcome.REJECTED_NOT_BETTER), ("base_fails", Outcome.PLATFORM_FAULT)],
)
def test_a_sealed_test_that_could_not_be_run(control: str, expected: Outcome) -> None:
    b = Builder(played(CARD))
    fields = {"tries": 2, "control": control, "error": "died"}
    b.fact(AcceptanceUnmeasured.model_validate(fields))
    assert outcome(b.entries) == (expected, (expected,))


APPLYING: dict[Outcome, FactBase] = {
    Outcome.PLATFORM_FAULT: DeliveryFaulted(boundary="compute", message="trainer died"),
    Outcome.CANCELLED_BY_OPERATOR: DeliveryCancelled(reason="no longer needed"),
    Outcome.BUDGET_EXHAUSTED: BudgetReserved(
        work_id="job-2", amounts=Amounts(usd=9), granted=False, exceeding=("usd",)
    ),
    Outcome.REFUSED_AT_GATE: gate("spend-2", GateKind.SPEND, GateDecision.EXPIRED),
    Outcome.STOPPED_ON_FLAG: flag_stopped(),
    Outcome.WITHDRAWN_BY_SEAT: SeatWithdrew(reason="enough"),
}


@pytest.mark.parametrize("first", APPLYING)
@pytest.mark.parametrize("second", APPLYING)
@pytest.mark.parametrize("end", ["accepted", "rejected", "no_model"])
def test_the_first_by_precedence_wins_and_all_are_kept(first: Outcome, second: Outcome, end: str) -> None:
    if end == "no_model":
        b, tail = Builder(played(StageName.EVAL)), (Outcome.NO_MODEL,)
    elif end == "rejected":
        b, tail = Builder(delivered(5, 90)), (Outcome.REJECTED_WORSE,)
    else:
        b, tail = Builder(HEALTHY[:-1]), ()
    b.fact(APPLYING[first])
    b.fact(APPLYING[second])
    order = [item for item in Outcome if item in {first, second}]
    assert outcome(b.entries) == (order[0], (*order, *tail))


def test_a_violation_of_any_attempt_outranks_all_but_the_platforms_own() -> None:
    b = Builder(played(StageName.SCHEDULE))
    play(b, TRAIN, judged=False)
    b = Builder(changed(b.entries, "job_started", dataset_digest="0" * 64))
    b.judge(TRAIN)
    play(b, TRAIN, attempt=2)
    b.fact(APPLYING[Outcome.REFUSED_AT_GATE])
    assert outcome(b.entries)[0] is Outcome.VIOLATION
    b.fact(APPLYING[Outcome.PLATFORM_FAULT])
    assert outcome(b.entries)[0] is Outcome.PLATFORM_FAULT


def test_a_job_over_budget_exhausts_the_budget() -> None:
    entries = changed(played(TRAIN), "job_ended", status="over_budget")
    assert outcome(entries)[0] is Outcome.BUDGET_EXHAUSTED


def test_silence_is_a_withdrawal() -> None:
    b = opening()
    b.fact(SeatSilent(waiting_for="intake", after_seconds=60.0))
    assert outcome(b.entries)[0] is Outcome.WITHDRAWN_BY_SEAT


def test_a_stopped_flag_is_not_the_end_when_a_later_job_completed() -> None:
    b = Builder(played(StageName.SCHEDULE))
    b.fact(flag_stopped(), TRAIN, 1)
    b.fact(ended(status="stopped"), TRAIN, 1)
    assert outcome(b.entries)[0] is Outcome.STOPPED_ON_FLAG
    play(b, TRAIN, attempt=2)
    assert Outcome.STOPPED_ON_FLAG not in outcome(b.entries)[1]


def test_a_stopped_second_job_does_not_undo_a_model_registered_from_the_first() -> None:
    b = Builder(played(StageName.EVAL))
    b.fact(flag_stopped(), TRAIN, 2)
    b.fact(ended(job_id="job-2", status="stopped"), TRAIN, 2)
    assert outcome(b.entries)[0] is Outcome.STOPPED_ON_FLAG
    b.fact(artifact(), REGISTER, 2)
    assert Outcome.STOPPED_ON_FLAG not in outcome(b.entries)[1]


def test_a_refused_spend_that_was_approved_later_is_no_refusal() -> None:
    entries = HEALTHY[:-1]
    place = next(n for n, entry in enumerate(entries) if entry.kind == "gate_decided")
    b = Builder(entries[:place])
    b.fact(gate("spend-0", GateKind.SPEND, GateDecision.REJECTED))
    assert outcome([*b.entries, *entries[place:]])[0] is Outcome.ACCEPTED


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 400), st.data())
def test_fewer_wins_never_lead_to_acceptance(wins: int, data: st.DataObject) -> None:
    losses = data.draw(st.integers(0, 400 - wins))
    fewer = data.draw(st.integers(0, wins))

    def accepted(count: int) -> bool:
        body = {
            "wins": count,
            "losses": losses,
            "ties": 400 - count - losses,
            "correct": count,
            "base_correct": losses,
        }
        verdict = judge_acceptance(Record(changed(SEALED_ONLY, "acceptance_tested", **body)))
        assert verdict
        return verdict.decision is AcceptanceDecision.ACCEPT

    assert accepted(fewer) <= accepted(wins)


SEALED_ONLY = [
    entry
    for entry in HEALTHY
    if entry.kind in {"acceptance_tested", "planted_truth", "artifact_registered", "delivery_opened"}
]


# --- judging again


def test_a_healthy_record_is_judged_the_same_again() -> None:
    assert rejudge(HEALTHY) == []


def test_a_failed_delivery_is_judged_the_same_again() -> None:
    b = Builder(delivered(5, 90))
    b.close()
    assert b.entries[-1].payload["outcome"] == "rejected_worse"
    assert rejudge(b.entries) == []


def altered(entries: Sequence[Entry], number: int, **changes: Any) -> list[Entry]:
    return [
        entry.model_copy(update={"payload": {**entry.payload, **changes}})
        if entry.number == number
        else entry
        for entry in entries
    ]


def test_an_altered_finding_is_named() -> None:
    verdict = next(entry for entry in HEALTHY if entry.kind == "stage" and entry.stage == TRAIN)
    findings = [dict(finding) for finding in verdict.payload["findings"]]
    findings[1]["status"] = "failed"
    (difference,) = rejudge(altered(HEALTHY, verdict.number, findings=findings))
    assert difference.entry == verdict.number
    assert "train attempt 1" in difference.what
    assert findings[1]["rule"] in difference.what
    assert '"failed"' in difference.recorded
    assert '"passed"' in difference.rejudged


@pytest.mark.parametrize(
    "changes", [{"status": "failed"}, {"attempt": 2}, {"extra": 1}, {"findings": []}, {"findings": None}]
)
def test_an_altered_stage_verdict_is_a_difference(changes: dict[str, Any]) -> None:
    verdict = next(entry for entry in HEALTHY if entry.kind == "stage" and entry.stage == REGISTER)
    found = rejudge(altered(HEALTHY, verdict.number, **changes))
    assert verdict.number in {difference.entry for difference in found}


def test_findings_in_another_order_are_a_difference() -> None:
    verdict = next(entry for entry in HEALTHY if entry.kind == "stage" and entry.stage == REGISTER)
    found = rejudge(altered(HEALTHY, verdict.number, findings=verdict.payload["findings"][::-1]))
    assert [(item.entry, item.what) for item in found] == [(verdict.number, "register attempt 1: findings")]


def test_an_altered_acceptance_or_outcome_is_named() -> None:
    verdict = next(entry for entry in HEALTHY if entry.kind == "acceptance")
    found = rejudge(altered(HEALTHY, verdict.number, p_value=0.5))
    assert [(item.entry, item.what) for item in found] == [(verdict.number, "acceptance")]
    closed = HEALTHY[-1]
    found = rejudge(altered(HEALTHY, closed.number, outcome="rejected_worse"))
    assert [(item.entry, item.what, item.rejudged) for item in found] == [
        (closed.number, "outcome", '"accepted"')
    ]


def test_an_altered_fact_changes_the_verdicts_that_rest_on_it() -> None:
    number = next(entry.number for entry in HEALTHY if entry.kind == "candidate_evaluated")
    found = rejudge(altered(HEALTHY, number, wins=100, ties=296, uplift=0.24))
    assert {difference.what.split(":")[0] for difference in found} == {"eval attempt 1"}
    assert any("eval.uplift_matches" in difference.what for difference in found)


def test_a_record_that_cannot_be_read_is_a_difference_and_no_crash() -> None:
    number = next(entry.number for entry in HEALTHY if entry.kind == "data_selected")
    found = rejudge(altered(HEALTHY, number, rows_out="many"))
    assert found
    assert {"rests on unreadable entries"} == {difference.recorded for difference in found}


# --- what the oracle is made of


def test_the_oracle_loads_neither_torch_nor_database_nor_temporal() -> None:
    code = (
        "import sys, oracle.judge, oracle.detector, oracle.acceptance, oracle.stats;"
        "heavy = {'torch', 'transformers', 'sqlmodel', 'sqlalchemy', 'temporalio', 'obstore'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
