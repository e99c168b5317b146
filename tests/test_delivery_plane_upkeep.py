"""Disk use, garbage and purging on a real home: what goes, what must stay, and what a kill leaves."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import records
from ledgers import DELIVERY, new_platform, note, open_delivery, platform_key, replay

from delivery_plane.delivery import Outcome
from delivery_plane.entry import read_checkpoints, read_json_lines, verify
from delivery_plane.errors import BadInput
from delivery_plane.facts import DeliveryClosed, DeliveryPurged
from delivery_plane.upkeep import disk_use, garbage, purge, remove, size_of
from oracle.judge import rejudge
from workflows.platform import Platform

ROWS = records.opened().scenario_digest[:20]
OPEN = "delivery-open"

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Platform]:
    """A home with an accepted delivery and an open one, each with files, and the rows that both rest on."""
    made = new_platform(tmp_path)
    replay(made, records.healthy_record(), made.identities.new("seat-test", "seat"))
    made.ledger.checkpoint(DELIVERY)
    open_delivery(made, delivery_id=OPEN)
    made.ledger.checkpoint(OPEN)
    for delivery_id in (DELIVERY, OPEN):
        folder = made.home.delivery(delivery_id)
        put(folder / "artifact" / "model.safetensors", 3000)
        put(folder / "jobs" / "job-1" / "checkpoint-160" / "weights", 5000)
        put(folder / "datasets" / "selected.jsonl", 700)
        put(folder / "spec.json", 40)
    for place in (made.home.splits, made.home.sealed):
        put(place / ROWS / "rows.jsonl", 900)
    yield made
    made.ledger.close()


def put(path: Path, size: int, days_old: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    then = time.time() - days_old * 86_400
    os.utime(path, (then, then))
    return path


def close(parts: Platform, delivery_id: str, outcome: Outcome) -> None:
    parts.ledger.fact(delivery_id, DeliveryClosed(outcome=outcome, applied=(outcome,), not_reached=()))
    parts.ledger.checkpoint(delivery_id)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def collect(parts: Platform, *, idle: bool = True) -> set[str]:
    found = garbage(parts.home, parts.ledger, idle=idle)
    for piece in found:
        assert piece.bytes == size_of(piece.path)
        remove(piece)
    return {str(piece.path.relative_to(parts.home.root)) for piece in found}


def test_use_is_told_per_delivery_and_part_in_bytes(parts: Platform) -> None:
    put(parts.home.deliveries / "unknown" / "spec.json", 11)
    known, opened, stray = disk_use(parts.home, parts.ledger)
    assert (known.delivery_id, known.outcome) == (DELIVERY, "accepted")
    assert (known.artifact, known.jobs, known.datasets, known.other, known.total) == (
        3000,
        5000,
        700,
        40,
        8740,
    )
    assert (opened.delivery_id, opened.outcome, opened.total) == (OPEN, None, 8740)
    assert (stray.delivery_id, stray.outcome, stray.total) == ("unknown", None, 11)


def test_of_an_accepted_delivery_only_the_checkpoints_go_and_of_an_open_one_nothing(parts: Platform) -> None:
    before = files(parts.home.delivery(OPEN))
    assert collect(parts) == {f"deliveries/{DELIVERY}/jobs"}
    assert files(parts.home.delivery(DELIVERY)) == {
        "artifact/model.safetensors", "datasets/selected.jsonl", "spec.json",
    }  # fmt: skip
    assert files(parts.home.delivery(OPEN)) == before
    assert files(parts.home.splits) == {f"{ROWS}/rows.jsonl"}
    assert collect(parts) == set()


@pytest.mark.parametrize(
    "outcome", [Outcome.REJECTED_NOT_BETTER, Outcome.STOPPED_ON_FLAG, Outcome.PLATFORM_FAULT]
)
def test_a_model_that_was_not_accepted_goes(parts: Platform, outcome: Outcome) -> None:
    close(parts, OPEN, outcome)
    assert f"deliveries/{OPEN}/artifact" in collect(parts)
    assert (parts.home.delivery(DELIVERY) / "artifact" / "model.safetensors").exists()


def test_old_logs_evaluations_and_half_written_files_go_and_young_ones_stay(parts: Platform) -> None:
    home = parts.home
    old = [
        put(home.logs / "evaluation-1-2.log", 5, days_old=15),
        put(home.cache / "evaluations" / "a.json", 5, days_old=31),
        put(home.delivery(OPEN) / "datasets" / ".rows.jsonl.abc.part", 5, days_old=2),
    ]
    young = [
        put(home.logs / "evaluation-3-4.log", 5, days_old=13),
        put(home.cache / "evaluations" / "b.json", 5, days_old=29),
        put(home.delivery(OPEN) / "datasets" / ".rows.jsonl.def.part", 5),
    ]
    collect(parts)
    assert [path.exists() for path in old] == [False] * 3
    assert [path.exists() for path in young] == [True] * 3


def test_rows_that_no_delivery_names_go_only_while_nothing_runs(parts: Platform) -> None:
    stray = put(parts.home.splits / ("0" * 20) / "public.jsonl", 10)
    collect(parts, idle=False)
    assert stray.exists()
    collect(parts, idle=True)
    assert not stray.exists()
    assert (parts.home.sealed / ROWS / "rows.jsonl").exists()


def test_the_secret_keys_and_heads_are_never_garbage(parts: Platform) -> None:
    kept = [put(parts.home.sealed / "secret", 32, days_old=400)]
    kept += [*parts.home.identities.iterdir(), *parts.home.heads.iterdir()]
    for path in kept:
        os.utime(path, (0, 0))
    collect(parts)
    assert all(path.exists() for path in kept)


# --- purging


def test_a_purge_erases_the_files_and_the_record_says_so_and_verifies(
    parts: Platform, tmp_path: Path
) -> None:
    done = purge(parts.home, parts.ledger, DELIVERY, "the customer asked")
    assert (done.files, done.bytes, done.rows_kept_for) == (4, 8740, (OPEN,))
    assert not parts.home.delivery(DELIVERY).exists()
    assert files(parts.home.splits) == {f"{ROWS}/rows.jsonl"}
    fact = parts.ledger.record(DELIVERY).last(DeliveryPurged)
    assert fact
    assert (fact.value.files, fact.value.bytes, fact.value.reason) == (4, 8740, "the customer asked")
    assert parts.ledger.verify(DELIVERY, platform_key(parts)).verified
    export = tmp_path / "export.jsonl"
    parts.ledger.export(DELIVERY, export)
    checkpoints = read_checkpoints(export.with_suffix(".checkpoint"))
    assert verify(read_json_lines(export), checkpoints, platform_key(parts)).verified
    assert rejudge(parts.ledger.entries(DELIVERY)) == []


def test_the_customers_rows_go_with_the_last_delivery_on_them(parts: Platform) -> None:
    close(parts, OPEN, Outcome.WITHDRAWN_BY_SEAT)
    assert purge(parts.home, parts.ledger, OPEN, "first").rows_kept_for == (DELIVERY,)
    assert files(parts.home.sealed) == {f"{ROWS}/rows.jsonl"}
    last = purge(parts.home, parts.ledger, DELIVERY, "second")
    assert (last.files, last.bytes, last.rows_kept_for) == (6, 8740 + 1800, ())
    assert files(parts.home.sealed) == files(parts.home.splits) == files(parts.home.deliveries) == set()


@pytest.mark.parametrize("which", [OPEN, "nobody"])
def test_what_is_open_or_unknown_is_not_purged(parts: Platform, which: str) -> None:
    before = files(parts.home.root)
    with pytest.raises(BadInput, match=r"still open|no delivery"):
        purge(parts.home, parts.ledger, which, "please")
    assert files(parts.home.root) == before


def test_a_second_purge_is_refused(parts: Platform) -> None:
    purge(parts.home, parts.ledger, DELIVERY, "once")
    with pytest.raises(BadInput, match="purged already"):
        purge(parts.home, parts.ledger, DELIVERY, "twice")


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("moment", ["before the fact", "before the signature", "while files are erased"])
def test_a_purge_that_was_killed_is_finished_by_the_next(
    parts: Platform, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    close(parts, OPEN, Outcome.WITHDRAWN_BY_SEAT)
    purge(parts.home, parts.ledger, OPEN, "the other one")

    def die(*_: object, **__: object) -> None:
        raise Killed

    places: dict[str, tuple[object, str]] = {
        "before the fact": (parts.ledger, "fact"),
        "before the signature": (parts.ledger, "checkpoint"),
        "while files are erased": (shutil, "rmtree"),
    }
    with monkeypatch.context() as patch:
        place, name = places[moment]
        patch.setattr(place, name, die)
        with pytest.raises(Killed):
            purge(parts.home, parts.ledger, DELIVERY, "asked")
    assert not (parts.home.delivery(DELIVERY) / "artifact").exists()
    assert parts.ledger.verify(DELIVERY, platform_key(parts)).verified
    purge(parts.home, parts.ledger, DELIVERY, "asked")
    assert list(parts.home.deliveries.iterdir()) == []
    assert list(parts.home.splits.iterdir()) == []
    assert len(parts.ledger.record(DELIVERY).facts(DeliveryPurged)) == 1
    assert parts.ledger.verify(DELIVERY, platform_key(parts)).signed == len(parts.ledger.entries(DELIVERY))


def test_nothing_but_a_purge_may_follow_a_signed_end(parts: Platform) -> None:
    parts.ledger.fact(DELIVERY, note(1))
    result = parts.ledger.verify(DELIVERY, platform_key(parts))
    assert not result.verified
    assert result.first_bad == len(parts.ledger.entries(DELIVERY))


def test_what_a_killed_purge_left_is_garbage(parts: Platform) -> None:
    left: Callable[[], list[Path]] = lambda: list(parts.home.deliveries.glob(".*"))  # noqa: E731
    put(parts.home.deliveries / ".erasing-gone" / "delivery" / "artifact" / "model", 10)
    assert left()
    collect(parts)
    assert not left()
