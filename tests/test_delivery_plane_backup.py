"""A ledger's back-up: taken from a home in use, brought back onto a new one, whole or not at all."""

import json
import shutil
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import records
from ledgers import (
    DELIVERY,
    NEW_DATABASE,
    new_platform,
    note,
    open_delivery,
    platform_key,
    replay,
    unlocked,
    whole,
)

from delivery_plane.backup import restore_backup, write_backup
from delivery_plane.errors import BadInput
from delivery_plane.settings import Home
from workflows.platform import Platform, open_platform

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Platform]:
    made = new_platform(tmp_path)
    replay(made, records.healthy_record(), made.identities.new("seat-test", "seat"))
    made.ledger.checkpoint(DELIVERY)
    open_delivery(made, delivery_id="open")
    with made.ledger.writing("open") as writer:
        writer.next_fence("train:1")
        writer.next_fence("train:1")
    made.ledger.checkpoint("open")
    made.ledger.fact("open", note("after the last head"))
    made.home.delivery("open").mkdir()
    (made.home.delivery("open") / "spec.json").write_text("{}")
    (made.home.sealed / "secret").write_bytes(b"s" * 32)
    made.identities.new("ada", "approver")
    yield made
    made.ledger.close()


@pytest.fixture
def saved(parts: Platform, tmp_path: Path) -> Path:
    path = tmp_path / "backup.zip"
    assert write_backup(parts.home, parts.ledger, parts.identities, path).bad == {}
    return path


def another_home(tmp_path: Path, name: str = "other") -> Home:
    return Home(tmp_path / name, NEW_DATABASE[-1]() if NEW_DATABASE else None)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_restored_home_has_the_record_the_keys_and_the_orders_and_goes_on(
    parts: Platform, saved: Path, tmp_path: Path
) -> None:
    home = another_home(tmp_path)
    done = restore_backup(home, saved)
    assert (done.manifest.deliveries, done.set_aside) == (2, ())
    again = open_platform(home)
    assert again.ledger.deliveries() == parts.ledger.deliveries()
    for delivery_id in parts.ledger.deliveries():
        assert again.ledger.entries(delivery_id) == parts.ledger.entries(delivery_id)
        assert again.ledger.verify(delivery_id, platform_key(parts)).verified
    assert again.identities.all() == parts.identities.all()
    assert (home.sealed / "secret").read_bytes() == b"s" * 32
    assert (home.delivery("open") / "spec.json").read_text() == "{}"
    with again.ledger.writing("open") as writer:
        assert writer.next_fence("train:1").token == 3  # older writers stay shut out
    again.ledger.fact("open", note("and on"))
    assert whole(again.ledger, platform_key(parts), "open")[-1].endswith("and on")
    again.ledger.close()


def test_only_its_owner_may_read_a_back_up(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600


def test_a_back_up_taken_while_others_write_is_consistent(parts: Platform, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            parts.ledger.fact("open", note(number := number + 1))
            parts.ledger.checkpoint("open")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            path = tmp_path / f"{number}.zip"
            assert write_backup(parts.home, parts.ledger, parts.identities, path).bad == {}
    finally:
        stop.set()
        writer.join()
    restore_backup(another_home(tmp_path), path)


def test_heads_from_after_the_back_up_and_the_servers_state_are_set_aside(
    parts: Platform, saved: Path, tmp_path: Path
) -> None:
    parts.ledger.checkpoint("open")
    parts.ledger.close()
    home = Home(parts.home.root, NEW_DATABASE[-1]() if NEW_DATABASE else None)
    if isinstance(home.ledger, Path):
        home.ledger.rename(tmp_path / "damaged.sqlite")
        for path in home.root.glob("ledger.sqlite-*"):
            path.unlink()
    home.temporal_database.write_bytes(b"steps of after the back-up")
    done = restore_backup(home, saved)
    assert sorted(path.name for path in done.set_aside) == ["open.checkpoint", "temporal.sqlite"]
    assert all(path.is_file() for path in done.set_aside)
    again = open_platform(home)
    assert again.ledger.verify("open", platform_key(parts)).verified
    again.ledger.close()


def test_a_home_that_has_a_ledger_is_left_alone(parts: Platform, saved: Path) -> None:
    before = tree(parts.home.root)
    with pytest.raises(BadInput, match=r"move it away|empty database"):
        restore_backup(parts.home, saved)
    # SQLite's shared memory changes by being read.
    after = tree(parts.home.root)
    assert {name: data for name, data in after.items() if "-shm" not in name} == {
        name: data for name, data in before.items() if "-shm" not in name
    }
    assert parts.ledger.verify(DELIVERY, platform_key(parts)).verified


@pytest.mark.parametrize("name", ["identities/ada.json", "sealed/secret"])
def test_a_home_with_other_keys_is_left_alone(saved: Path, tmp_path: Path, name: str) -> None:
    home = another_home(tmp_path).create()
    (home.root / name).write_bytes(b"something else")
    before = tree(home.root)
    with pytest.raises(BadInput, match="is not the back-up's"):
        restore_backup(home, saved)
    assert tree(home.root) == before


def rewritten(saved: Path, path: Path, changes: dict[str, bytes | None]) -> Path:
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w") as new:
        for name in {**dict.fromkeys(old.namelist()), **dict.fromkeys(changes)}:
            data = changes.get(name, b"") if name in changes else old.read(name)
            if data is not None:
                new.writestr(name, data)
    return path


def _tampered(saved: Path) -> bytes:
    return zipfile.ZipFile(saved).read("ledger.jsonl").replace(b"seat:test", b"seat:evil")


def _without_last(saved: Path) -> bytes:
    lines = zipfile.ZipFile(saved).read("ledger.jsonl").splitlines(keepends=True)
    entries = [
        line
        for line in lines
        if json.loads(line)[0] == "entry" and json.loads(line)[1]["delivery_id"] == DELIVERY
    ]
    return b"".join(line for line in lines if line != entries[-1])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ledger.jsonl": _tampered}, "do not verify"),
        ({"ledger.jsonl": _without_last}, "do not verify"),
        ({"ledger.jsonl": b"not JSON\n"}, "damaged"),
        ({"ledger.jsonl": b'["entry", {}]\n'}, "damaged"),
        ({"ledger.jsonl": b'["wish", {"delivery_id": "x"}]\n'}, "damaged"),
        ({"ledger.jsonl": None}, "damaged"),
        ({"manifest.json": None}, "no back-up of a ledger"),
        ({"manifest.json": b'{"format": 2}'}, "no back-up that this release reads"),
        ({"manifest.json": b"\xff"}, "no back-up"),
        ({f"heads/{DELIVERY}.checkpoint": b"not a head\n"}, "JSON"),
        ({"identities/platform.json": None}, "platform"),
        ({"identities/platform.json": b"{}"}, "platform"),
    ],
)
def test_a_back_up_that_does_not_hold_is_refused_and_nothing_is_written(
    saved: Path, tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    made = {name: change(saved) if callable(change) else change for name, change in changes.items()}
    path = rewritten(saved, tmp_path / "changed.zip", made)
    home = another_home(tmp_path)
    with pytest.raises(BadInput, match=why) as caught:
        restore_backup(home, path)
    assert len(str(caught.value).splitlines()) == 1
    assert not home.root.exists()


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.9, 0.999])
def test_a_back_up_cut_short_is_refused(saved: Path, tmp_path: Path, cut: float) -> None:
    data = saved.read_bytes()
    short = tmp_path / "short.zip"
    short.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(BadInput, match="no back-up"):
        restore_backup(another_home(tmp_path), short)


def test_names_in_a_back_up_lead_nowhere_else(saved: Path, tmp_path: Path) -> None:
    strange = {
        "heads/../../outside.checkpoint": b"x",
        "orders/../outside.json": b"x",
        "orders//outside.json": b"x",
        "identities/..json": b"x",
        "/outside": b"x",
    }
    home = another_home(tmp_path, "deep/er/home")
    restore_backup(home, rewritten(saved, tmp_path / "strange.zip", dict(strange)))
    assert not list(tmp_path.rglob("*outside*"))


def test_a_back_up_of_a_record_that_does_not_hold_says_so(parts: Platform, tmp_path: Path) -> None:
    unlocked(parts).execute(
        "UPDATE entry SET actor = 'mallory' WHERE delivery_id = 'delivery-1' AND number = 3"
    )
    made = write_backup(parts.home, parts.ledger, parts.identities, tmp_path / "b.zip")
    assert [(name, bad.first_bad) for name, bad in made.bad.items()] == [(DELIVERY, 3)]


def test_a_restore_that_was_killed_before_its_last_step_is_done_again(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    home = another_home(tmp_path)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("delivery_plane.backup._load", die)
        with pytest.raises(KeyboardInterrupt):
            restore_backup(home, saved)
    if database == "sqlite":
        (home.root / ".ledger.sqlite.part").write_text("half a database")
    restore_backup(home, saved)
    again = open_platform(home)
    assert len(again.ledger.deliveries()) == 2
    again.ledger.close()


def test_it_cannot_be_written_where_there_is_no_place(parts: Platform, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        write_backup(parts.home, parts.ledger, parts.identities, tmp_path / "no" / "b.zip")
    shutil.rmtree(tmp_path / "no", ignore_errors=True)
