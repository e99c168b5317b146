"""What whoever holds the seat may do and see: one claim per visit, no truth, no verdict, nothing after the end."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import records
from ledgers import (
    BRIEF,
    DELIVERY,
    START,
    at_once,
    new_platform,
    one_of,
    open_delivery,
    open_stage,
    platform_key,
    replay,
    seat_of,
    visible,
)

from delivery_plane.claims import (
    AbortCriterion,
    Claim,
    CostClaim,
    FlagAnswer,
    IntakeClaim,
    IssueNoted,
    PlanClaim,
    TrainClaim,
)
from delivery_plane.delivery import Amounts, GateKind, GateRequest, Outcome, StageName
from delivery_plane.entry import Entry
from delivery_plane.errors import BadInput
from delivery_plane.facts import (
    ClaimRefused,
    DeliveryClosed,
    EvaluationRequested,
    FaultPlanted,
    FlagRaised,
    FlagResolved,
    SeatWithdrew,
)
from delivery_plane.identity import Identity
from delivery_plane.seat.seat import ClaimNotTaken, Seat
from workflows.approval import shown
from workflows.platform import Platform

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Platform]:
    made = new_platform(tmp_path)
    yield made
    made.ledger.close()


@pytest.fixture
def holder(parts: Platform) -> Identity:
    return open_delivery(parts)


@pytest.fixture
def wakes() -> list[int]:
    """Grows by one with every wake of the workflow."""
    return []


@pytest.fixture
def seat(parts: Platform, holder: Identity, wakes: list[int]) -> Seat:
    return seat_of(parts, holder, wakes)


def refused(parts: Platform) -> list[ClaimRefused]:
    return [fact.value for fact in parts.ledger.record(DELIVERY).facts(ClaimRefused)]


def claims(parts: Platform) -> list[Claim]:
    return [entry.claim() for entry in parts.ledger.entries(DELIVERY) if entry.type == "claim"]


def close(parts: Platform) -> None:
    outcome = Outcome.REJECTED_NOT_BETTER
    parts.ledger.fact(DELIVERY, DeliveryClosed(outcome=outcome, applied=(outcome,), not_reached=()))


def raise_flag(parts: Platform, flag_id: str = "flag-1") -> None:
    flag = FlagRaised(
        flag_id=flag_id,
        job_id="job-1",
        step=80,
        budget_fraction=0.5,
        score=0.01,
        threshold=0.15,
        probe_items=64,
        action="paused",
        message="no uplift",
    )
    parts.ledger.fact(DELIVERY, flag, stage=StageName.TRAIN, attempt=1)


def stop(flag_id: str = "flag-1", reason: str = "wasted") -> FlagAnswer:
    return FlagAnswer(flag_id=flag_id, action="stop", reason=reason)


# --- who sits there


def test_another_identity_cannot_take_the_seat(parts: Platform, holder: Identity) -> None:
    open_stage(parts, StageName.TRAIN)
    for other in (parts.identities.new("another", "seat"), parts.identities.new("olga", "operator")):
        with pytest.raises(BadInput, match=f"identity {other.name} does not hold the seat of {DELIVERY}"):
            seat_of(parts, other)
    renamed = parts.identities.new("copy", "seat").model_copy(update={"name": holder.name})
    with pytest.raises(BadInput, match="does not hold the seat"):
        seat_of(parts, renamed)
    assert claims(parts) == []


def test_there_is_no_seat_at_a_delivery_that_is_not_there(parts: Platform, holder: Identity) -> None:
    with pytest.raises(BadInput, match="no delivery nobody"):
        Seat(parts.ledger, "nobody", holder, BRIEF, lambda: None)


def test_the_seat_of_one_delivery_is_not_the_seat_of_another(parts: Platform, holder: Identity) -> None:
    open_delivery(parts, delivery_id="delivery-2", seat="another")
    with pytest.raises(BadInput, match="does not hold the seat of delivery-2"):
        Seat(parts.ledger, "delivery-2", holder, BRIEF, lambda: None)


# --- claims


def test_a_claim_is_taken_once_per_visit_and_wakes_the_workflow(
    parts: Platform, seat: Seat, wakes: list[int]
) -> None:
    open_stage(parts, StageName.TRAIN)
    number = seat.claim(START)
    entry = parts.ledger.entries(DELIVERY)[-1]
    assert (entry.number, entry.claim(), entry.stage, entry.attempt) == (number, START, StageName.TRAIN, 1)
    assert entry.actor == "seat:seat-test"
    assert wakes == [1]
    with pytest.raises(ClaimNotTaken, match="has its claim already"):
        seat.claim(TrainClaim(action="stop", reason="second thoughts"))
    assert claims(parts) == [START]
    assert one_of(refused(parts)).why == "this visit has its claim already"
    assert wakes == [1]
    open_stage(parts, StageName.TRAIN, 2)
    seat.claim(START)
    assert len(claims(parts)) == 2


def test_a_claim_for_another_stage_is_refused_and_the_visit_stays_open(
    parts: Platform, seat: Seat, wakes: list[int]
) -> None:
    open_stage(parts, StageName.COST)
    with pytest.raises(ClaimNotTaken, match="the open stage is cost"):
        seat.claim(START)
    assert (one_of(refused(parts)).stage, one_of(refused(parts)).why) == ("train", "the open stage is cost")
    assert claims(parts) == []
    assert wakes == []
    seat.claim(CostClaim(total=Amounts()))
    assert len(claims(parts)) == 1


def test_every_refusal_is_on_record(parts: Platform, seat: Seat) -> None:
    open_stage(parts, StageName.COST)
    for _ in range(3):
        with pytest.raises(ClaimNotTaken):
            seat.claim(START)
    assert len(refused(parts)) == 3


MALFORMED: dict[str, object] = {
    "nothing": None,
    "a word": "start",
    "a list": [],
    "no stage": {"action": "start", "reason": "x"},
    "an unknown stage": {"stage": "rest", "action": "start", "reason": "x"},
    "a stage that is a list": {"stage": ["train"], "action": "start", "reason": "x"},
    "a missing field": {"stage": "train", "reason": "x"},
    "a field too many": {"stage": "train", "action": "start", "reason": "x", "uplift": 1.0},
    "an unknown action": {"stage": "train", "action": "pretend", "reason": "x"},
    "a number for a text": {"stage": "train", "action": "start", "reason": 7},
    "a reason of a million letters": {"stage": "train", "action": "start", "reason": "x" * 1_000_000},
    "half a character": {"stage": "train", "action": "start", "reason": "\ud800"},
    "not a number": {"stage": "cost", "total": {"usd": float("nan")}},
    "an endless number": {"stage": "cost", "total": {"usd": float("inf")}},
    "a number beyond all sense": {"stage": "cost", "total": {"tokens": 10**400}},
    "less than nothing": {"stage": "cost", "total": {"usd": -1.0}},
    "names that steer a terminal": {
        "stage": "train",
        "\x1b[31m\u202e": "x",
        "action": "start",
        "reason": "x",
    },
    "many unknown names": {"stage": "train", **{f"field-{n}": n for n in range(500)}},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_claim_is_refused_in_one_line_on_record_and_the_visit_stays_open(
    parts: Platform, seat: Seat, wakes: list[int], name: str
) -> None:
    open_stage(parts, StageName.TRAIN)
    with pytest.raises(ClaimNotTaken) as caught:
        seat.claim(MALFORMED[name])
    said = str(caught.value)
    assert len(said) < 2000
    assert said.isprintable()
    assert one_of(refused(parts)).why == said
    assert (claims(parts), wakes) == ([], [])
    assert parts.ledger.verify(DELIVERY, platform_key(parts)).verified
    seat.claim({"stage": "train", "action": "start", "reason": "as planned"})
    assert claims(parts) == [START]


def test_before_the_first_stage_nothing_is_taken(parts: Platform, seat: Seat) -> None:
    before = len(parts.ledger.entries(DELIVERY))
    for attempt in (seat.brief, lambda: seat.claim(START), lambda: seat.request_evaluation("base")):
        with pytest.raises(BadInput, match="no stage is open yet"):
            attempt()
    assert len(parts.ledger.entries(DELIVERY)) == before


def test_a_closed_delivery_takes_no_claim_and_no_answer(
    parts: Platform, seat: Seat, wakes: list[int]
) -> None:
    open_stage(parts, StageName.TRAIN)
    raise_flag(parts)
    close(parts)
    for claim in (START, stop()):
        with pytest.raises(ClaimNotTaken, match="the delivery is closed"):
            seat.claim(claim)
    assert claims(parts) == []
    assert wakes == []


def test_of_many_claims_at_once_one_is_taken(parts: Platform, holder: Identity) -> None:
    open_stage(parts, StageName.TRAIN)
    found = at_once(20, lambda n: seat_of(parts, holder).claim(TrainClaim(action="start", reason=str(n))))
    number = one_of([item for item in found if isinstance(item, int)])
    assert sum(isinstance(item, ClaimNotTaken) for item in found) == 19
    assert one_of(claims(parts)) == parts.ledger.entries(DELIVERY)[number - 1].claim()
    assert len(refused(parts)) == 19


def _plan(value: float) -> PlanClaim:
    criterion = AbortCriterion(measure="usd", comparison="above", value=value, at_fraction=0.5)
    return PlanClaim(
        objective="sft",
        mechanism="full",
        base="micro-1",
        selectors=(),
        abort_criteria=(criterion,),
        dev_evaluations=1,
        rationale="",
    )


def _intake(margin: float = 0.3, rows: int = 1) -> IntakeClaim:
    return IntakeClaim(
        decision="accept",
        statement_of_work="",
        metric="accuracy",
        target_margin=margin,
        permitted_licences=(),
        issues=(IssueNoted(kind="pii", rows=rows, action="drop"),),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: _plan(float("inf")),
        lambda: _plan(float("nan")),
        lambda: _plan(1e17),
        lambda: _intake(margin=float("-inf")),
        lambda: _intake(rows=2**60),
    ],
)
def test_a_number_that_cannot_be_recorded_is_the_seat_s_error_not_a_fault(
    parts: Platform, seat: Seat, make: Callable[[], Claim]
) -> None:
    parts.ledger.checkpoint(DELIVERY)
    try:
        claim = make()
    except ValueError:
        return  # refused by form: as good
    open_stage(parts, StageName(claim.stage))
    with pytest.raises(BadInput):
        seat.claim(claim)
    parts.ledger.checkpoint(DELIVERY)
    parts.ledger.verify(DELIVERY, parts.identities.get("platform").public_key)


# --- flags


def test_a_flag_is_answered_once(parts: Platform, seat: Seat, wakes: list[int]) -> None:
    open_stage(parts, StageName.TRAIN)
    seat.claim(START)
    raise_flag(parts)
    seat.claim(stop())
    with pytest.raises(ClaimNotTaken, match="flag flag-1 has its answer already"):
        seat.claim(FlagAnswer(flag_id="flag-1", action="continue", reason="let me"))
    answer = parts.ledger.record(DELIVERY).flag_answer("flag-1")
    assert answer
    assert answer.value == stop()
    assert answer.stage is StageName.TRAIN
    assert wakes == [1, 1]
    raise_flag(parts, "flag-2")
    seat.claim(stop("flag-2"))


def test_a_flag_that_is_not_there_or_over_takes_no_answer(parts: Platform, seat: Seat) -> None:
    open_stage(parts, StageName.TRAIN)
    with pytest.raises(ClaimNotTaken, match="no flag flag-1"):
        seat.claim(stop())
    raise_flag(parts)
    resolved = FlagResolved(flag_id="flag-1", resolution="stopped", because="seat_silent")
    parts.ledger.fact(DELIVERY, resolved)
    with pytest.raises(ClaimNotTaken, match="has its answer already"):
        seat.claim(stop())
    assert [fact.stage for fact in refused(parts)] == ["flag", "flag"]
    assert claims(parts) == []


# --- dev evaluations, and giving up


def test_an_evaluation_is_asked_for_at_eval_and_for_a_known_candidate_only(
    parts: Platform, seat: Seat, wakes: list[int]
) -> None:
    for stage in set(StageName) - {StageName.EVAL}:
        open_stage(parts, stage)
        with pytest.raises(BadInput, match=f"{stage} is open"):
            seat.request_evaluation("base")
    open_stage(parts, StageName.EVAL)
    with pytest.raises(BadInput, match="no candidate job-1; there are: base"):
        seat.request_evaluation("job-1")
    parts.ledger.fact(DELIVERY, records.ended())
    with pytest.raises(BadInput, match="no candidate job-2; there are: base, job-1"):
        seat.request_evaluation("job-2")
    assert wakes == []
    assert seat.request_evaluation("job-1") == "look-1"
    assert seat.request_evaluation("base") == "look-2"
    asked = [fact.value for fact in parts.ledger.record(DELIVERY).facts(EvaluationRequested)]
    assert [(fact.request_id, fact.candidate) for fact in asked] == [("look-1", "job-1"), ("look-2", "base")]
    assert wakes == [1, 1]


def test_evaluations_asked_for_at_once_are_each_on_record(parts: Platform, holder: Identity) -> None:
    open_stage(parts, StageName.EVAL)
    found = at_once(8, lambda _: seat_of(parts, holder).request_evaluation("base"))
    assert sorted(found) == [f"look-{number}" for number in range(1, 9)]


@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (lambda seat: seat.request_evaluation("base"), EvaluationRequested),
        (lambda seat: seat.withdraw("no use"), SeatWithdrew),
    ],
)
def test_a_closed_delivery_takes_no_request_either(
    parts: Platform, seat: Seat, wakes: list[int], ask: Callable[[Seat], Any], kind: type[Any]
) -> None:
    open_stage(parts, StageName.EVAL)
    close(parts)
    with pytest.raises(BadInput):
        ask(seat)
    assert parts.ledger.record(DELIVERY).facts(kind) == []
    assert wakes == []


def test_giving_up_is_on_record_with_its_reason(parts: Platform, seat: Seat, wakes: list[int]) -> None:
    seat.withdraw("no data worth it")
    found = parts.ledger.record(DELIVERY).last(SeatWithdrew)
    assert found
    assert found.value.reason == "no data worth it"
    assert wakes == [1]


# --- what the seat sees


def test_the_brief_says_where_the_seat_stands_and_what_is_left(parts: Platform, seat: Seat) -> None:
    open_stage(parts, StageName.TRAIN, 2)
    brief = seat.brief()
    assert (brief.text, brief.stage, brief.attempt) == (BRIEF, StageName.TRAIN, 2)
    assert brief.remaining == records.BUDGET


MARK = "kingfisher"
SECRET_NUMBER = 987_654


def marked(entry: Entry) -> Entry:
    """The entry with what it must not tell made easy to tell."""
    payload = dict(entry.payload)
    counts = dict.fromkeys(("wins", "losses", "ties", "items"), SECRET_NUMBER)
    if entry.kind == "planted_truth":
        names = ("metric", "sealed_digest", "dev_digest", "probe_digest")
        payload |= {name: f"{MARK}-{name}" for name in names}
        payload |= {"metric_synonyms": [f"{MARK}-word"], "planted_rows": {"pii": SECRET_NUMBER}}
        payload["sealed_items"] = SECRET_NUMBER
    elif entry.kind == "acceptance_tested":
        payload |= counts | {"sealed_digest": f"{MARK}-sealed", "correct": SECRET_NUMBER}
    elif entry.kind == "acceptance":
        payload |= counts
    elif entry.kind == "stage":
        payload["findings"] = [{**found, "message": f"{MARK}-finding"} for found in payload["findings"]]
    return entry.model_copy(update={"payload": payload})


@pytest.fixture
def judged(parts: Platform) -> tuple[Platform, Seat]:
    """A whole delivery up to its sealed test."""
    entries = records.healthy_record()
    sealed_test = next(place for place, entry in enumerate(entries) if entry.kind == "acceptance")
    holder = parts.identities.new("seat-test", "seat")
    replay(parts, map(marked, entries[: sealed_test + 1]), holder)
    parts.ledger.fact(DELIVERY, FaultPlanted(fault=f"{MARK}-fault"))
    return parts, seat_of(parts, holder)


def test_nothing_the_seat_sees_tells_of_truth_fault_verdict_or_sealed_test(
    judged: tuple[Platform, Seat],
) -> None:
    parts, seat = judged
    everything = json.dumps([entry.model_dump(mode="json") for entry in parts.ledger.entries(DELIVERY)])
    for secret in ("finding", "fault", "sealed", "word", "metric", "sealed_digest"):
        assert f"{MARK}-{secret}" in everything
    assert str(SECRET_NUMBER) in everything
    seen = visible(seat)
    assert MARK not in seen
    assert str(SECRET_NUMBER) not in seen
    kinds = {entry.kind for entry in seat.record().entries}
    assert kinds.isdisjoint({"planted_truth", "fault_planted", "acceptance_tested", "stage", "acceptance"})
    assert {"delivery_opened", "data_profiled", "candidate_evaluated", "meters_read"} <= kinds
    assert all(entry.type in ("fact", "claim") for entry in seat.record().entries)
    assert seat.record().acceptance() is None
    assert seat.record().verdicts() == []


def test_the_release_gate_does_not_tell_the_seat_how_the_sealed_test_went(
    judged: tuple[Platform, Seat],
) -> None:
    parts, seat = judged
    request = GateRequest(
        delivery_id=DELIVERY, gate_id="release-1", kind=GateKind.RELEASE, attempt=1, deadline_seconds=60
    )
    parts.gates.open(request, shown(parts.ledger.record(DELIVERY), request))
    assert str(SECRET_NUMBER) not in visible(seat)


def test_the_seat_sees_its_own_claims_and_its_gates(judged: tuple[Platform, Seat]) -> None:
    parts, seat = judged
    written = [entry for entry in parts.ledger.entries(DELIVERY) if entry.type == "claim"]
    assert [entry for entry in seat.record().entries if entry.type == "claim"] == written
    assert "gate_decided" in {entry.kind for entry in seat.record().entries}
