"""A gate is decided once, by somebody who may, on the bytes that were shown; every refusal is on record."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import records
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import DELIVERY, at_once, new_platform, one_of, open_delivery, platform_key, raw

from delivery_plane.claims import ConfigClaim, FlagAnswer
from delivery_plane.delivery import GateDecision, GateKind, GateRequest, StageName
from delivery_plane.entry import Entry, sha256
from delivery_plane.errors import BadInput
from delivery_plane.facts import (
    DataSelected,
    FlagRaised,
    GateDecided,
    GateDecisionRefused,
    GateOpened,
    ScheduleQuoted,
)
from delivery_plane.gates import DecisionRefused, decided, decision_bytes
from delivery_plane.identity import Identity, signed_by
from workflows.approval import shown
from workflows.platform import Platform

pytestmark = pytest.mark.usefixtures("database")

GATE = "spend-1"
SHOWN = '{"decide": "spend this?", "usd": 0.02}'
DIGEST = sha256(SHOWN.encode())

APPROVED, REJECTED, EXPIRED = GateDecision.APPROVED, GateDecision.REJECTED, GateDecision.EXPIRED


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Platform]:
    """A delivery with one gate that waits, and two people who may decide it."""
    made = new_platform(tmp_path)
    open_delivery(made)
    made.identities.new("alice", "approver")
    made.identities.new("olga", "operator")
    open_gate(made)
    yield made
    made.ledger.close()


def open_gate(parts: Platform, gate_id: str = GATE, seconds: float = 3600, text: str = SHOWN) -> GateOpened:
    request = GateRequest(
        delivery_id=DELIVERY, gate_id=gate_id, kind=GateKind.SPEND, attempt=1, deadline_seconds=seconds
    )
    return parts.gates.open(request, text)


def decide(
    parts: Platform,
    by: str | Identity = "alice",
    decision: Any = APPROVED,
    reason: str = "within budget",
    digest: str = DIGEST,
    gate_id: str = GATE,
) -> GateDecided:
    identity = parts.identities.get(by) if isinstance(by, str) else by
    return parts.gates.decide(DELIVERY, gate_id, identity, decision, reason, digest)


def refusals(parts: Platform) -> list[GateDecisionRefused]:
    return [fact.value for fact in parts.ledger.record(DELIVERY).facts(GateDecisionRefused)]


def decisions(parts: Platform) -> list[GateDecided]:
    return [fact.value for fact in parts.ledger.record(DELIVERY).facts(GateDecided)]


@pytest.mark.parametrize("by", ["alice", "olga"])
@pytest.mark.parametrize("decision", [APPROVED, REJECTED])
def test_a_decision_is_recorded_with_who_what_and_why(
    parts: Platform, by: str, decision: GateDecision
) -> None:
    made = decide(parts, by, decision, "the quote is fair")
    assert decisions(parts) == [made]
    assert (made.gate_id, made.gate, made.decision, made.by) == (GATE, GateKind.SPEND, decision, by)
    assert (made.reason, made.digest) == ("the quote is fair", DIGEST)
    assert made.public_key == parts.identities.get(by).public_key
    assert 0 <= made.seconds_open < 60
    assert decided(parts.ledger.record(DELIVERY), GATE) == made
    assert parts.ledger.entries(DELIVERY)[-1].actor == f"approver:{by}"
    assert refusals(parts) == []
    assert list(parts.gates.waiting()) == []


# --- refusals


def seat_holder(parts: Platform) -> None:
    decide(parts, "seat-test")


def seat_holder_under_another_name(parts: Platform) -> None:
    held = json.loads((parts.home.identities / "seat-test.json").read_text())
    copied = {**held, "name": "boss", "role": "approver"}
    (parts.home.identities / "boss.json").write_text(json.dumps(copied))
    decide(parts, "boss")


def wrong_role(parts: Platform) -> None:
    decide(parts, parts.identities.new("another-seat", "seat"))


def second_decision(parts: Platform) -> None:
    decide(parts, "olga", REJECTED)
    decide(parts, "alice", APPROVED)


def same_decision_again(parts: Platform) -> None:
    decide(parts)
    decide(parts)


def late(parts: Platform) -> None:
    with pytest.MonkeyPatch.context() as patch:
        deadline = datetime.fromisoformat(parts.gates.find(GATE).gate.deadline_at)
        patch.setattr("delivery_plane.gates.utc_now", lambda: deadline)
        decide(parts)


def after_it_expired(parts: Platform) -> None:
    parts.gates.expire(DELIVERY, GATE)
    decide(parts)


# What somebody does, why it is refused, who is named, and the decisions on record after it.
REFUSED: list[tuple[Callable[[Platform], None], str, str, list[GateDecision]]] = [
    (seat_holder, "seat_holder", "seat-test", []),
    (seat_holder_under_another_name, "seat_holder", "boss", []),
    (wrong_role, "not_an_approver", "another-seat", []),
    (second_decision, "already_decided", "alice", [REJECTED]),
    (same_decision_again, "already_decided", "alice", [APPROVED]),
    (late, "late", "alice", []),
    (after_it_expired, "late", "alice", [EXPIRED]),
    (lambda parts: decide(parts, reason=""), "no_reason", "alice", []),
    (lambda parts: decide(parts, reason=" \t\n"), "no_reason", "alice", []),
    (lambda parts: decide(parts, digest=sha256(b"other bytes")), "changed_bytes", "alice", []),
    (lambda parts: decide(parts, digest=""), "changed_bytes", "alice", []),
    (lambda parts: decide(parts, digest=DIGEST.upper()), "changed_bytes", "alice", []),
]


@pytest.mark.parametrize(
    ("attempt", "why", "by", "after"), REFUSED, ids=[f"{n}-{row[1]}" for n, row in enumerate(REFUSED)]
)
def test_a_refused_decision_is_a_fact_and_decides_nothing(
    parts: Platform, attempt: Callable[[Platform], None], why: str, by: str, after: list[GateDecision]
) -> None:
    with pytest.raises(DecisionRefused) as caught:
        attempt(parts)
    refused = one_of(refusals(parts))
    assert refused == caught.value.refusal
    assert (refused.gate_id, refused.why, refused.by) == (GATE, why, by)
    assert caught.value.exit_code == 1
    assert len(str(caught.value).splitlines()) == 1
    assert [found.decision for found in decisions(parts)] == after
    assert parts.ledger.entries(DELIVERY)[-1].actor == f"approver:{by}"
    parts.ledger.checkpoint(DELIVERY)
    assert parts.ledger.verify(DELIVERY, platform_key(parts)).verified


def test_a_gate_can_still_be_decided_after_every_kind_of_refusal(parts: Platform) -> None:
    for attempt in (
        seat_holder,
        wrong_role,
        lambda parts: decide(parts, reason=""),
        lambda parts: decide(parts, digest=""),
        lambda parts: decide(parts, reason=""),
    ):
        with pytest.raises(DecisionRefused):
            attempt(parts)
    decide(parts)
    assert [refused.why for refused in refusals(parts)] == [
        "seat_holder", "not_an_approver", "no_reason", "changed_bytes", "no_reason",
    ]  # fmt: skip
    assert one_of(decisions(parts)).decision is APPROVED


def test_a_key_that_is_not_the_registered_one_signs_nothing(parts: Platform, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    stranger = type(parts.identities)(tmp_path / "elsewhere").new("alice", "approver")
    with pytest.raises(DecisionRefused, match="bad_signature"):
        decide(parts, stranger)
    assert decisions(parts) == []


def poser(parts: Platform) -> Identity:
    return parts.identities.new("another-seat", "seat").model_copy(update={"role": "approver"})


def seat_with_a_borrowed_face(parts: Platform) -> Identity:
    key = parts.identities.get("alice").public_key
    return parts.identities.get("seat-test").model_copy(update={"role": "approver", "public_key": key})


def signer_under_a_wrong_key(parts: Platform) -> Identity:
    return parts.identities.get("alice").model_copy(update={"public_key": "00" * 32})


@pytest.mark.parametrize("make", [poser, seat_with_a_borrowed_face, signer_under_a_wrong_key])
def test_what_an_identity_says_of_itself_counts_for_nothing(
    parts: Platform, make: Callable[[Platform], Identity]
) -> None:
    identity = make(parts)
    try:
        made = decide(parts, identity)
    except DecisionRefused:
        return
    assert parts.identities.get(identity.name).role in ("approver", "operator")
    assert made.public_key == parts.identities.get(identity.name).public_key


def test_an_unknown_gate_or_identity_is_bad_input_and_writes_nothing(parts: Platform) -> None:
    before = len(parts.ledger.entries(DELIVERY))
    with pytest.raises(BadInput, match="no gate release-1"):
        parts.gates.find("release-1")
    with pytest.raises(BadInput, match="no gate release-1"):
        decide(parts, gate_id="release-1")
    with pytest.raises(BadInput, match="no gate release-1"):
        parts.gates.expire(DELIVERY, "release-1")
    with pytest.raises(BadInput, match="no identity nobody"):
        decide(parts, "nobody")
    assert len(parts.ledger.entries(DELIVERY)) == before


# --- deadlines


def test_a_gate_expires_when_nobody_decided(parts: Platform) -> None:
    parts.gates.expire(DELIVERY, GATE)
    parts.gates.expire(DELIVERY, GATE)
    found = one_of(decisions(parts))
    assert (found.decision, found.by, found.signature) == (EXPIRED, None, None)
    assert list(parts.gates.waiting()) == []


def test_a_decision_that_came_first_stands_against_the_deadline(parts: Platform) -> None:
    made = decide(parts, decision=REJECTED)
    parts.gates.expire(DELIVERY, GATE)
    assert decisions(parts) == [made]


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_the_deadline_is_counted_from_the_opening(parts: Platform, seconds: float) -> None:
    opened = open_gate(parts, "spend-2", seconds)
    length = datetime.fromisoformat(opened.deadline_at) - datetime.fromisoformat(opened.opened_at)
    assert length == timedelta(seconds=seconds)
    assert seconds - 60 < parts.gates.seconds_left(opened) <= seconds
    if not seconds:
        with pytest.raises(DecisionRefused, match="late"):
            decide(parts, gate_id="spend-2")


def test_a_gate_opened_again_is_the_same_gate(parts: Platform) -> None:
    again = open_gate(parts, seconds=10, text="other bytes")
    assert (again.shown, again.digest) == (SHOWN, DIGEST)
    assert again == parts.gates.find(GATE).gate
    assert len(parts.ledger.record(DELIVERY).facts(GateOpened)) == 1
    assert [(found.delivery_id, found.gate.gate_id) for found in parts.gates.waiting()] == [(DELIVERY, GATE)]


# --- races


def test_of_fifty_decisions_at_once_one_is_taken_and_the_others_are_refused(parts: Platform) -> None:
    parts.identities.new("bob", "approver")

    def one(number: int) -> GateDecided:
        by = ("alice", "bob", "olga")[number % 3]
        return decide(parts, by, APPROVED if number % 2 else REJECTED, f"reason {number}")

    found = at_once(50, one)
    taken = one_of([item for item in found if isinstance(item, GateDecided)])
    assert decisions(parts) == [taken]
    refused = [item.refusal for item in found if isinstance(item, DecisionRefused)]
    assert [item.why for item in refused] == ["already_decided"] * 49
    assert len(refusals(parts)) == 49
    parts.ledger.checkpoint(DELIVERY)
    assert parts.ledger.verify(DELIVERY, platform_key(parts)).verified


def test_a_decision_and_the_deadline_at_once_leave_one_of_them(parts: Platform) -> None:
    for number in range(8):
        gate_id = f"race-{number}"
        open_gate(parts, gate_id)
        answers = at_once(
            2,
            lambda side, gate_id=gate_id: (
                decide(parts, gate_id=gate_id) if side else parts.gates.expire(DELIVERY, gate_id)
            ),
        )
        found = one_of([item for item in decisions(parts) if item.gate_id == gate_id])
        expired, taken = answers
        assert isinstance(expired, Entry)
        assert expired.fact() == found
        if found.decision is EXPIRED:
            assert isinstance(taken, DecisionRefused)
            assert taken.refusal.why == "late"
        else:
            assert taken == found


# --- signatures

WORDS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


@settings(deadline=None, max_examples=25)
@given(
    delivery=st.from_regex(r"[a-z0-9][a-z0-9-]{2,20}", fullmatch=True),
    gate=WORDS | st.just("a\0b"),
    decision=st.sampled_from([APPROVED, REJECTED]),
    reason=WORDS.filter(str.strip),
)
def test_a_decision_is_signed_over_its_bytes_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, delivery: str, gate: str, decision: Any, reason: str
) -> None:
    parts = new_platform(tmp_path_factory.mktemp("gates"))
    alice = parts.identities.new("alice", "approver")
    bob = parts.identities.new("bob", "approver")
    request = GateRequest(
        delivery_id=delivery, gate_id=gate, kind=GateKind.RELEASE, attempt=1, deadline_seconds=60
    )
    digest = parts.gates.open(request, SHOWN).digest
    made = parts.gates.decide(delivery, gate, alice, decision, reason, digest)
    assert made.signature
    exact = {
        "delivery_id": delivery,
        "gate_id": gate,
        "decision": decision,
        "digest": digest,
        "reason": reason,
    }
    assert signed_by(alice.public_key, made.signature, decision_bytes(**exact))
    assert not signed_by(bob.public_key, made.signature, decision_bytes(**exact))
    others: list[dict[str, Any]] = [
        {**exact, "delivery_id": delivery + "1"},
        {**exact, "gate_id": gate + "1"},
        {**exact, "decision": REJECTED if decision is APPROVED else APPROVED},
        {**exact, "digest": sha256(b"other bytes")},
        {**exact, "reason": reason + "."},
        {**exact, "gate_id": gate + reason, "reason": ""},
    ]
    for other in others:
        assert not signed_by(alice.public_key, made.signature, decision_bytes(**other))
    parts.ledger.close()


# --- what the approver sees


def test_the_digest_is_of_the_bytes_as_stored(parts: Platform) -> None:
    gate = open_gate(parts, "spend-2", text="Grüße \u2028 \U0001f600")
    (payload,) = raw(parts).execute("SELECT payload FROM entry ORDER BY id DESC LIMIT 1").fetchone()
    assert sha256(json.loads(payload)["shown"].encode()) == gate.digest


def test_hostile_words_of_the_seat_reach_the_approver_without_their_effect() -> None:
    hostile = "\x1b[2J\x1b]0;title\x07 \x9b31m \u202e\u200b\u200d <script>x</script> \r approved by operator"
    entries = records.Builder(records.played(StageName.SCHEDULE))
    entries.fact(
        FlagRaised(
            flag_id="flag-1",
            job_id="job-1",
            step=80,
            budget_fraction=0.5,
            score=0.01,
            threshold=0.15,
            probe_items=64,
            action="paused",
            message="no uplift",
        ),
        StageName.TRAIN,
        1,
    )
    entries.claim(FlagAnswer(flag_id="flag-1", action="continue", reason=hostile))
    request = GateRequest(
        delivery_id=DELIVERY,
        gate_id="flag-1",
        kind=GateKind.FLAG,
        attempt=1,
        deadline_seconds=60,
        subject="flag-1",
    )
    text = shown(entries.record, request)
    assert all(character == "\n" or (character.isascii() and character.isprintable()) for character in text)
    assert json.loads(text)["the_seat_says"] == hostile
    assert json.loads(text)["decide"] == "let the flagged job go on?"


def test_the_spend_gate_shows_what_will_run_and_not_what_the_seat_says_of_it() -> None:
    record = records.Builder(records.played(StageName.SCHEDULE)).record
    request = GateRequest(
        delivery_id=DELIVERY, gate_id=GATE, kind=GateKind.SPEND, attempt=1, deadline_seconds=60
    )
    content = json.loads(shown(record, request))
    quoted, config, selected = (
        record.last(ScheduleQuoted),
        record.claim(ConfigClaim),
        record.last(DataSelected),
    )
    assert quoted
    assert quoted.value.offer
    assert config
    assert selected
    assert content["quote"] == quoted.value.offer.model_dump(mode="json")
    assert content["job"] == config.value.model_dump(mode="json")
    assert content["job_digest"] == records.JOB
    assert content["training_rows"] == selected.value.rows_out
    assert "Few labels" not in json.dumps(content)  # the plan's rationale
