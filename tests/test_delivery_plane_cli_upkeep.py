"""Disk use, garbage, purging, back-up and restore as commands: what they print, write and refuse."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from inprocess import empty_place, make_used_home, refused, run, snapshot
from ledgers import DELIVERY

from delivery_plane.settings import Home
from workflows.runtime import idle

CLOSED, OPEN = DELIVERY, "delivery-2"

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")


@pytest.fixture(scope="module")
def used_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_used_home(tmp_path_factory.mktemp("used") / "home")
    for name in ("artifact/model.safetensors", "jobs/job-1/checkpoint-4/weights"):
        path = folder / "deliveries" / CLOSED / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 1000)
    return folder


@pytest.fixture(autouse=True)
def home(used_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of a home with a closed delivery, which has a model and a checkpoint, and an open one."""
    folder = empty_place(tmp_path, monkeypatch) / "home"
    shutil.copytree(used_home, folder)
    monkeypatch.setenv("DELIVERY_PLANE_HOME", str(folder))
    return folder


def test_disk_tells_bytes_to_scripts_and_sizes_to_people() -> None:
    told = json.loads(run("deliveries", "disk", "--json").out)
    closed, opened = told["deliveries"]
    assert (closed["delivery_id"], closed["outcome"], closed["artifact"], closed["jobs"]) == (
        CLOSED, "accepted", 1000, 1000,
    )  # fmt: skip
    assert (opened["delivery_id"], opened["outcome"], opened["total"]) == (OPEN, None, 0)
    assert told["total"] == 2000 + sum(told["shared"].values())
    shown = run("deliveries", "disk").out
    assert CLOSED in shown
    assert "1.0 kB" in shown


def test_garbage_is_told_before_it_is_removed(home: Path) -> None:
    before = snapshot(home / "deliveries")
    told = json.loads(run("deliveries", "gc", "--dry-run", "--json").out)
    assert not told["removed"]
    assert [(Path(piece["path"]).name, piece["bytes"]) for piece in told["pieces"]] == [("jobs", 1000)]
    assert snapshot(home / "deliveries") == before
    assert "1 pieces, 1.0 kB removed" in run("deliveries", "gc").out
    assert not (home / "deliveries" / CLOSED / "jobs").exists()


def test_a_purged_delivery_can_be_shown_and_verified_but_not_fetched(tmp_path: Path) -> None:
    seconds = json.loads(run("deliveries", "show", CLOSED, "--json").out)["wall_seconds"]
    told = json.loads(run("deliveries", "purge", CLOSED, "--reason", "asked to", "--json").out)
    assert (told["files"], told["bytes"], told["rows_kept_for"]) == (2, 2000, [OPEN])
    shown = json.loads(run("deliveries", "show", CLOSED, "--json").out)
    assert (shown["outcome"], shown["wall_seconds"]) == ("accepted", seconds)
    assert run("ledger", "verify").code in (0, 1)  # the open one was never signed
    assert f"{CLOSED}: verified" in run("ledger", "verify").out
    assert "purged" in refused("deliveries", "fetch", CLOSED, str(tmp_path / "model"))
    assert "purged already" in refused("deliveries", "purge", CLOSED, "--reason", "again")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("deliveries", "purge", OPEN, "--reason", "x"), "deliveries cancel"),
        (("deliveries", "purge", "nobody", "--reason", "x"), "no delivery nobody"),
        (("deliveries", "purge", CLOSED, "--reason", " "), "say why"),
        (("deliveries", "purge", CLOSED), "--reason"),
        (("ledger", "backup", "home"), "does not exist yet"),
        (("ledger", "backup", "no/such/folder/b.zip"), "cannot be written"),
        (("ledger", "backup", "x" * 300), "no usable path"),
        (("ledger", "restore", "missing.zip"), "missing.zip"),
        (("ledger", "restore", "home"), "no back-up"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    home: Path, words: tuple[str, ...], says: str
) -> None:
    before = snapshot(home.parent)
    assert says in refused(*words)
    after = snapshot(home.parent)
    assert {**after, "home/lock": 0} == {**before, "home/lock": 0}


def test_a_back_up_comes_back_on_a_new_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.loads(run("ledger", "backup", "b.zip", "--json").out)
    assert (told["deliveries"], told["not_verified"]) == (2, [])
    listed = run("deliveries", "list", "--json").out
    monkeypatch.setenv("DELIVERY_PLANE_HOME", str(home.parent / "new"))
    back = json.loads(run("ledger", "restore", "b.zip", "--json").out)
    assert (back["entries"], back["set_aside"]) == (told["entries"], [])
    assert run("deliveries", "list", "--json").out == listed
    assert "exists; move it away" in refused("ledger", "restore", "b.zip")


def test_nothing_is_restored_under_a_runtime_that_is_up(home: Path) -> None:
    run("ledger", "backup", "b.zip")
    (home / "ledger.sqlite").unlink()
    with idle(Home(home)) as mine:
        assert mine
        assert "stop it first" in refused("ledger", "restore", "b.zip")
    assert not (home / "ledger.sqlite").exists()
