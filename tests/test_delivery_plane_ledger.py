"""The record on a real database: chained, numbered, append-only, whole after crashes, signed outside."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import records
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import (
    DELIVERY,
    REFUSED,
    START,
    at_once,
    new_platform,
    note,
    platform_key,
    raw,
    reopened,
    unlocked,
    whole,
)
from pydantic import ValidationError

from delivery_plane.delivery import StageName
from delivery_plane.entry import GENESIS, entry_hash, read_checkpoints, read_json_lines, verify
from delivery_plane.errors import BadInput, LedgerFault, StaleFence
from delivery_plane.facts import FactBase, SeatSilent, SeatWithdrew
from delivery_plane.ledger import Fence, Ledger
from oracle.judge import judge_stage
from workflows.platform import Platform

pytestmark = pytest.mark.usefixtures("database")

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Platform]:
    made = new_platform(tmp_path)
    yield made
    made.ledger.close()


def test_facts_claims_and_verdicts_are_one_chain_numbered_from_one(parts: Platform) -> None:
    verdict = judge_stage(records.Builder(records.played(StageName.INTAKE)).record, StageName.INTAKE, 1)
    with parts.ledger.writing(DELIVERY) as writer:
        writer.fact(note(1))
        writer.claim(START, key="claim:train:1", stage=StageName.TRAIN, attempt=1, actor="seat:test")
        writer.verdict("stage", verdict, stage=StageName.INTAKE, attempt=1)
    parts.ledger.fact(DELIVERY, note(2))
    entries = parts.ledger.entries(DELIVERY)
    assert [entry.type for entry in entries] == ["fact", "claim", "verdict", "fact"]
    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    assert [entry.prev_hash for entry in entries] == [GENESIS, *(entry.hash for entry in entries[:-1])]
    assert all(entry.hash == entry_hash(entry.model_dump(mode="json")) for entry in entries)
    assert entries[2].visibility == "operator"
    assert whole(parts.ledger, platform_key(parts))


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(["a-1", "b-1"]), st.integers(0, 5)), max_size=14))
def test_any_sequence_of_appends_writes_each_key_once(
    tmp_path_factory: pytest.TempPathFactory, appends: list[tuple[str, int]]
) -> None:
    parts = new_platform(tmp_path_factory.mktemp("ledger"))
    first: dict[tuple[str, int], int] = {}
    for delivery_id, number in appends:
        entry = parts.ledger.fact(delivery_id, note(number))
        written = sum(known[0] == delivery_id for known in first)
        assert entry.number == first.setdefault((delivery_id, number), written + 1)
    for delivery_id in {delivery_id for delivery_id, _ in appends}:
        keys = whole(parts.ledger, platform_key(parts), delivery_id)
        assert len(keys) == len(set(keys)) == sum(known[0] == delivery_id for known in first)
    assert parts.ledger.deliveries() == list(dict.fromkeys(delivery_id for delivery_id, _ in appends))
    parts.ledger.close()


def test_a_repeated_key_returns_what_was_written_first(parts: Platform) -> None:
    first = parts.ledger.fact(DELIVERY, SeatWithdrew(reason="first"), key="same")
    again = parts.ledger.fact(DELIVERY, SeatWithdrew(reason="second"), key="same")
    assert again == first == parts.ledger.entries(DELIVERY)[0]
    assert len(parts.ledger.entries(DELIVERY)) == 1
    assert parts.ledger.fact("delivery-2", SeatWithdrew(reason="other"), key="same").number == 1


def test_a_key_may_hold_any_character(parts: Platform) -> None:
    key = "a\0b\u2028\U0001f600"
    first = parts.ledger.fact(DELIVERY, SeatWithdrew(reason="one\0two"), key=key)
    assert parts.ledger.fact(DELIVERY, SeatWithdrew(reason="again"), key=key) == first
    with parts.ledger.writing(DELIVERY) as writer:
        assert writer.find(key) == first
    assert whole(parts.ledger, platform_key(parts))


def test_an_unknown_delivery_is_bad_input_and_writes_nothing(parts: Platform) -> None:
    with pytest.raises(BadInput, match="no delivery nobody"):
        parts.ledger.record("nobody")
    assert parts.ledger.deliveries() == []


# --- what the database itself refuses


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET payload = '{}' WHERE number = 2",
        "UPDATE entry SET hash = prev_hash",
        "DELETE FROM entry WHERE number = 3",
        "DELETE FROM entry",
        "INSERT INTO entry SELECT id, delivery_id, number, type, kind, stage, attempt, visibility, actor, recorded_at,"
        " idempotency_key, payload, prev_hash, hash FROM entry WHERE number = 2"
        " ON CONFLICT (id) DO UPDATE SET actor = 'mallory'",
    ],
)
def test_the_database_refuses_to_change_or_remove_an_entry(parts: Platform, statement: str) -> None:
    for number in range(3):
        parts.ledger.fact(DELIVERY, note(number))
    before = parts.ledger.entries(DELIVERY)
    with pytest.raises(REFUSED, match="append-only"):
        raw(parts).execute(statement)
    assert parts.ledger.entries(DELIVERY) == before


def test_triggers_that_somebody_removed_are_back_when_the_ledger_opens(parts: Platform) -> None:
    parts.ledger.fact(DELIVERY, note(1))
    unlocked(parts).execute("UPDATE entry SET actor = 'mallory'")
    reopened(parts).close()
    with pytest.raises(REFUSED, match="append-only"):
        raw(parts).execute("DELETE FROM entry")


@pytest.mark.parametrize(
    ("statement", "first_bad"),
    [
        ("UPDATE entry SET actor = 'mallory' WHERE number = 4", 4),
        ("UPDATE entry SET payload = replace(payload, 'base', 'job-1') WHERE number = 5", 5),
        ("UPDATE entry SET recorded_at = '2020-01-01T00:00:00.000000+00:00' WHERE number = 2", 2),
        ("UPDATE entry SET hash = prev_hash WHERE number = 3", 3),
        ("DELETE FROM entry WHERE number = 3", 3),
        ("DELETE FROM entry WHERE number > 4", 5),
        ("DELETE FROM entry", 1),
        ("UPDATE entry SET number = number + 10 WHERE number > 3", 4),
        ("UPDATE entry SET payload = 'no JSON' WHERE number = 3", 3),
        ("UPDATE entry SET visibility = 'everybody' WHERE number = 3", 3),
    ],
)
def test_a_tampered_database_does_not_verify_and_the_entry_is_named(
    parts: Platform, statement: str, first_bad: int
) -> None:
    for number in range(6):
        parts.ledger.fact(DELIVERY, note(number))
    parts.ledger.checkpoint(DELIVERY)
    unlocked(parts).execute(statement)
    result = parts.ledger.verify(DELIVERY, platform_key(parts))
    assert not result.verified
    assert result.first_bad == first_bad, result.why


# --- fences and transactions


def append_both(parts: Platform, free: FactBase, fenced: FactBase, fence: Fence) -> None:
    with parts.ledger.writing(DELIVERY) as writer:
        writer.fact(free)
        writer.fact(fenced, fence=fence)


def test_a_newer_fence_voids_the_older_and_nothing_is_written_under_it(parts: Platform) -> None:
    with parts.ledger.writing(DELIVERY) as writer:
        old = writer.next_fence("train:1")
    parts.ledger.fact(DELIVERY, note("under the first"), fence=old)
    with parts.ledger.writing(DELIVERY) as writer:
        new = writer.next_fence("train:1")
    assert new.token > old.token
    with pytest.raises(StaleFence, match="superseded"):
        parts.ledger.fact(DELIVERY, note("late"), fence=old)
    with pytest.raises(StaleFence):
        append_both(parts, note("with it"), note("late"), old)
    parts.ledger.fact(DELIVERY, note("under the second"), fence=new)
    kept = [entry.payload["request_id"] for entry in parts.ledger.entries(DELIVERY)]
    assert kept == ["note-under the first", "note-under the second"]


def test_a_fence_of_another_place_or_never_given_out_is_refused(parts: Platform) -> None:
    with parts.ledger.writing(DELIVERY) as writer:
        fence = writer.next_fence("train:1")
    for delivery_id, wrong in (
        (DELIVERY, Fence(resource="train:2", token=fence.token)),
        (DELIVERY, Fence(resource="train:1", token=fence.token + 1)),
        ("delivery-2", fence),
    ):
        with pytest.raises(StaleFence):
            parts.ledger.fact(delivery_id, note(1), fence=wrong)
    with parts.ledger.writing(DELIVERY) as writer:
        writer.next_fence("train:2")
    parts.ledger.fact(DELIVERY, note(1), fence=fence)


def test_tokens_given_out_at_once_are_all_different(parts: Platform) -> None:
    def token(_: int) -> int:
        with parts.ledger.writing(DELIVERY) as writer:
            return writer.next_fence("train:1").token

    assert sorted(at_once(8, token)) == list(range(1, 9))


def append_and_raise(parts: Platform, error: type[BaseException]) -> None:
    with parts.ledger.writing(DELIVERY) as writer:
        writer.fact(note(1))
        writer.next_fence("train:1")
        writer.fact(note(2))
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, LedgerFault])
def test_a_transaction_that_raises_leaves_nothing(parts: Platform, error: type[BaseException]) -> None:
    parts.ledger.fact(DELIVERY, note(0))
    with pytest.raises(error):
        append_and_raise(parts, error)
    assert len(parts.ledger.entries(DELIVERY)) == 1
    parts.ledger.fact(DELIVERY, note(3))
    with parts.ledger.writing(DELIVERY) as writer:
        assert writer.next_fence("train:1").token == 1
    assert whole(parts.ledger, platform_key(parts)) == [
        "evaluation_requested:-:0:note-0",
        "evaluation_requested:-:0:note-3",
    ]


# --- the clock


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=8))
def test_recorded_times_never_go_back_whatever_the_clock_does(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[int]
) -> None:
    parts = new_platform(tmp_path_factory.mktemp("ledger"))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.MonkeyPatch.context() as patch:
        for number, second in enumerate(seconds):
            now = start + timedelta(seconds=second)
            patch.setattr("delivery_plane.ledger.utc_now", lambda now=now: now)
            parts.ledger.fact(DELIVERY, note(number))
    times = [datetime.fromisoformat(entry.recorded_at) for entry in parts.ledger.entries(DELIVERY)]
    highest = [max(seconds[: number + 1]) for number in range(len(seconds))]
    assert times == [start + timedelta(seconds=second) for second in highest]
    parts.ledger.close()


# --- processes


def append(database: Path, heads: Path, delivery_id: str, worker: int, count: int) -> None:
    ledger = Ledger(database, heads)
    for number in range(count):
        ledger.fact(delivery_id, note(f"{worker}-{number}"))


@pytest.mark.parametrize("deliveries", [1, 4], ids=["one delivery", "four deliveries"])
def test_four_processes_append_without_gap_loss_or_double(parts: Platform, deliveries: int) -> None:
    each = 50
    workers = [
        FORK.Process(
            target=append,
            args=(parts.home.ledger, parts.home.heads, f"d-{worker % deliveries}", worker, each),
        )
        for worker in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    written = set()
    for delivery_id in parts.ledger.deliveries():
        keys = whole(parts.ledger, platform_key(parts), delivery_id)
        assert len(keys) == len(set(keys)) == 4 * each // deliveries
        written |= set(keys)
    assert written == {
        f"evaluation_requested:-:0:note-{worker}-{number}" for worker in range(4) for number in range(each)
    }


def append_for_ever(parts: Platform, said: int, since: int) -> None:
    ledger = reopened(parts)
    for number in range(since, since + 100_000):
        ledger.fact(DELIVERY, note(number))
        os.write(said, f"{number}\n".encode())
        if number % 5 == 0:
            ledger.checkpoint(DELIVERY)


def test_a_killed_writer_loses_nothing_it_acknowledged(parts: Platform) -> None:
    acknowledged: list[int] = []
    for life in range(6):
        reading, writing = os.pipe()
        since = acknowledged[-1] + 1 if acknowledged else 0
        process = FORK.Process(target=append_for_ever, args=(parts, writing, since))
        process.start()
        os.close(writing)
        with os.fdopen(reading) as lines:
            for _ in range(3 + life):
                acknowledged.append(int(lines.readline()))
            time.sleep(0.0007 * life)
            process.kill()
            process.join()
            acknowledged += [int(line) for line in lines]
        ledger = reopened(parts)
        keys = whole(ledger, platform_key(parts))
        ledger.close()
        assert {f"evaluation_requested:-:0:note-{number}" for number in acknowledged} <= set(keys)
        # The one append that was under way when the kill came may be there without its word.
        assert len(keys) - len(set(acknowledged)) in (0, 1)
    assert process.exitcode == -signal.SIGKILL


# --- signed heads


def test_checkpoints_follow_one_another_and_nothing_new_signs_nothing(parts: Platform) -> None:
    for number in range(3):
        parts.ledger.fact(DELIVERY, note(number))
    first = parts.ledger.checkpoint(DELIVERY)
    held = parts.ledger.head_file(DELIVERY).read_bytes()
    assert parts.ledger.checkpoint(DELIVERY) == first
    assert parts.ledger.head_file(DELIVERY).read_bytes() == held
    parts.ledger.fact(DELIVERY, note(3))
    second = parts.ledger.checkpoint(DELIVERY)
    assert [(done.since, done.size, len(done.hashes)) for done in (first, second)] == [(0, 3, 3), (3, 4, 1)]
    assert second.root == parts.ledger.entries(DELIVERY)[-1].hash
    assert parts.ledger.checkpoints(DELIVERY) == [first, second]
    assert parts.ledger.head_file(DELIVERY).stat().st_mode & 0o777 == 0o600


def test_signers_at_the_same_moment_sign_each_entry_once(parts: Platform) -> None:
    def write_and_sign(number: int) -> None:
        parts.ledger.fact(DELIVERY, note(number))
        parts.ledger.checkpoint(DELIVERY)

    assert at_once(8, write_and_sign) == [None] * 8
    assert sum(len(done.hashes) for done in parts.ledger.checkpoints(DELIVERY)) == 8
    assert whole(parts.ledger, platform_key(parts))


@pytest.mark.parametrize("lost", [1, 2, 40, 200])
def test_a_torn_last_line_is_cut_off_and_the_next_checkpoint_is_whole(parts: Platform, lost: int) -> None:
    for number in range(4):
        parts.ledger.fact(DELIVERY, note(number))
        parts.ledger.checkpoint(DELIVERY)
    path = parts.ledger.head_file(DELIVERY)
    path.write_bytes(path.read_bytes()[:-lost])
    assert parts.ledger.verify(DELIVERY, platform_key(parts)).verified
    parts.ledger.fact(DELIVERY, note(4))
    assert parts.ledger.checkpoint(DELIVERY).size == 5
    result = parts.ledger.verify(DELIVERY, platform_key(parts))
    assert result.verified, result.why
    assert sum(len(done.hashes) for done in read_checkpoints(path)) == 5
    assert path.read_bytes().endswith(b"\n")


def test_a_ledger_without_the_key_cannot_sign(parts: Platform) -> None:
    parts.ledger.fact(DELIVERY, note(1))
    ledger = Ledger(parts.home.ledger, parts.home.heads)
    with pytest.raises(LedgerFault, match="cannot sign"):
        ledger.checkpoint(DELIVERY)
    assert not ledger.verify(DELIVERY, platform_key(parts)).verified


# --- exports


def test_an_export_verifies_from_its_files_alone(parts: Platform, tmp_path: Path) -> None:
    # Characters that some readers take for the end of a line, and some that JSON escapes.
    hostile = 'a\u2028b\u2029c\x85d\x0be\x1ff\u0000g\nh"\\ \U0001f600'
    parts.ledger.fact(DELIVERY, SeatWithdrew(reason=hostile))
    parts.ledger.fact(DELIVERY, SeatSilent(waiting_for="a claim", after_seconds=0.1 + 0.2))
    parts.ledger.checkpoint(DELIVERY)
    out = tmp_path / "new folder" / "export.jsonl"
    files = parts.ledger.export(DELIVERY, out)
    assert sorted(path.name for path in files) == ["export.checkpoint", "export.jsonl", "export.pub"]
    assert all(path.is_file() for path in files)
    lines = read_json_lines(out)
    checkpoints = read_checkpoints(out.with_suffix(".checkpoint"))
    result = verify(lines, checkpoints, out.with_suffix(".pub").read_text().strip())
    assert result.verified, result.why
    assert result.entries == 2
    assert lines[0]["payload"]["reason"] == hostile


def test_an_export_of_an_unknown_delivery_or_to_no_place_writes_nothing(
    parts: Platform, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="no delivery"):
        parts.ledger.export("nobody", tmp_path / "out" / "export.jsonl")
    assert not (tmp_path / "out").exists()
    parts.ledger.fact(DELIVERY, note(1))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="cannot be written"):
        parts.ledger.export(DELIVERY, tmp_path / "file" / "export.jsonl")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["export.checkpoint", "export.pub"])
def test_an_export_never_overwrites_its_own_record(parts: Platform, tmp_path: Path, name: str) -> None:
    parts.ledger.fact(DELIVERY, note(1))
    parts.ledger.checkpoint(DELIVERY)
    try:
        parts.ledger.export(DELIVERY, tmp_path / name)
    except BadInput:
        return
    assert read_json_lines(tmp_path / name)[0]["payload"]["request_id"] == "note-1"


def test_numbers_survive_the_database_bit_by_bit(parts: Platform) -> None:
    values = [0.1, 1 / 3, 1e-300, 5e-324, 123456789.123456789, 9007199254740991.0, 3.0, -0.5]
    for number, value in enumerate(values):
        parts.ledger.fact(DELIVERY, SeatSilent(waiting_for="x", after_seconds=value), key=str(number))
    found = [entry.fact() for entry in parts.ledger.entries(DELIVERY)]
    assert [fact.after_seconds for fact in found if isinstance(fact, SeatSilent)] == values
    assert whole(parts.ledger, platform_key(parts))


@pytest.mark.parametrize("value", [9007199254740992.0, 1e17, 1e20])
def test_whatever_was_appended_can_be_verified_and_exported(
    parts: Platform, tmp_path: Path, value: float
) -> None:
    try:
        parts.ledger.fact(DELIVERY, SeatSilent(waiting_for="x", after_seconds=value))
    except (LedgerFault, ValueError):
        return
    assert whole(parts.ledger, platform_key(parts))
    parts.ledger.export(DELIVERY, tmp_path / "export.jsonl")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_fact_that_is_no_json_is_refused_by_name_and_leaves_nothing(parts: Platform, value: float) -> None:
    try:
        fact = SeatSilent(waiting_for="x", after_seconds=value)
    except ValidationError:
        return  # refused before it comes here: as good
    with pytest.raises((LedgerFault, BadInput)):
        parts.ledger.fact(DELIVERY, fact)
    assert parts.ledger.entries(DELIVERY) == []


def test_a_damaged_entry_is_a_ledger_fault_for_writers_too(parts: Platform) -> None:
    parts.ledger.fact(DELIVERY, note(1))
    unlocked(parts).execute("UPDATE entry SET payload = 'no JSON'")
    with pytest.raises(LedgerFault):
        parts.ledger.entries(DELIVERY)
    with pytest.raises(LedgerFault):
        parts.ledger.fact(DELIVERY, note(2))


def test_no_head_is_signed_over_a_record_that_left_its_last_one(parts: Platform) -> None:
    for number in range(4):
        parts.ledger.fact(DELIVERY, note(number))
    parts.ledger.checkpoint(DELIVERY)
    unlocked(parts).execute("DELETE FROM entry WHERE number > 2")
    with pytest.raises(LedgerFault, match="no longer holds the 4 entries"):
        parts.ledger.checkpoint(DELIVERY)
    parts.ledger.fact(DELIVERY, note(4))
    with pytest.raises(LedgerFault, match="no longer holds"):
        parts.ledger.checkpoint(DELIVERY)
