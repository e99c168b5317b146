"""A full and a read-only home, on a real small file system: everything waits, nothing is half written, it goes on."""

import contextlib
import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy
from commands import Plane
from kill_harness import observed, probes

from delivery_plane.compute.local.children import call_in_child
from delivery_plane.errors import ComputeFault, MachineUnfit, attributed, no_room
from delivery_plane.files import ROOM_BYTES, lacks_room

MEGABYTE = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 300 MB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user may not mount a file system: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Take all space but `leave` bytes; the file that does."""
    path = disk / "filler"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while leave == 0 or os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > leave:
            file.write(bytes(MEGABYTE if leave else 4096))
    return path


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def save_tensors(folder: str) -> None:
    """Runs in a child: a library of compiled code writes to the disk."""
    import torch
    from safetensors.torch import save_file

    save_file({"big": torch.zeros(4 * MEGABYTE)}, f"{folder}/big.safetensors")


def save_state(folder: str) -> None:
    """Runs in a child: one whose errors do not say why."""
    import torch

    torch.save({"big": torch.zeros(4 * MEGABYTE)}, f"{folder}/big.pt")


@pytest.mark.parametrize("function", ["save_tensors", "save_state"])
def test_a_child_on_a_full_disk_is_told_from_a_defect(disk: Path, function: str) -> None:
    (disk / "logs").mkdir()
    filler = fill(disk, leave=MEGABYTE)
    with pytest.raises(MachineUnfit, match="no space left"):
        call_in_child("saving", f"test_survival_disk:{function}", str(disk), logs=disk / "logs")
    filler.unlink()
    call_in_child("saving", f"test_survival_disk:{function}", str(disk), logs=disk / "logs")


def test_what_a_full_or_read_only_disk_raises_is_known(disk: Path) -> None:
    assert lacks_room(disk) is None
    database = sqlite3.connect(disk / "some.sqlite")
    database.execute("CREATE TABLE a (b)")
    filler = fill(disk)
    with pytest.raises(sqlite3.OperationalError) as full:
        database.execute("INSERT INTO a VALUES (zeroblob(1000000))")
    assert no_room(full.value)
    assert "no space left" in str(lacks_room(disk))
    with pytest.raises(MachineUnfit, match="no space left"), attributed(ComputeFault, "writing"):
        (disk / "more").write_bytes(bytes(MEGABYTE))
    filler.unlink()
    database.close()
    remount(disk, "ro")
    with pytest.raises(MachineUnfit, match="read-only"), attributed(ComputeFault, "writing"):
        (disk / "more").write_bytes(b"1")
    with pytest.raises(sqlite3.OperationalError) as closed:
        sqlite3.connect(disk / "some.sqlite").execute("CREATE TABLE c (d)")
    assert no_room(closed.value)
    assert "read-only" in str(lacks_room(disk))
    assert no_room(OSError("something else")) is None


@pytest.mark.long
def test_a_delivery_waits_for_space_and_then_ends_as_ever(
    disk: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    scenario = str(toy.shared(tmp_path_factory.getbasetemp().parent))
    plane = Plane(disk / "home")
    with plane.up() as up, observed(plane, "short-of-space") as observer:
        ordered = plane.start("deliver", scenario, "--id", "short-of-space", "--json")
        assert observer.wait(lambda: any(entry["kind"] == "checkpoint_saved" for entry in observer.entries))
        filler = fill(disk)
        observer.look_again()
        recorded = len(observer.entries)
        # Longer than three tries take: they must not count.
        assert not observer.wait(lambda: len(observer.entries) > recorded + 1, 20)
        assert up.poll() is None
        assert ordered.poll() is None
        filler.unlink()
        assert observer.wait(observer.closed)
        out, err = ordered.communicate(timeout=120)
    said = [line for line in err.splitlines() if "waiting: no space left on the disk" in line]
    assert said
    assert "(step run_stage of train, try " in said[0]
    shown = json.loads(out)
    assert shown["outcome"] == "accepted"
    assert {stage["status"] for stage in shown["stages"]} == {"passed"}
    assert probes(observer.entries) == [18 * k for k in range(1, 17)]
    assert observer.changed == []
    assert shown["ledger"]["verified"]

    remount(disk, "ro")
    for words in (
        ("up",),
        ("deliver", scenario),
        ("demo",),
    ):
        refused(plane, *words)
    remount(disk, "rw")
    filler = fill(disk, leave=ROOM_BYTES // 2)
    refused(plane, "up")
    filler.unlink()
    with plane.up():
        plane.run("ledger", "verify")


def refused(plane: Plane, *words: str) -> None:
    """A command that cannot write ends with one line and exit code 3."""
    process = plane.start(*words)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3, err
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err
