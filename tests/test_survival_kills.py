"""A delivery under fire: its processes killed with SIGKILL in one stage after another, and then the whole tree."""

import os
import signal
from pathlib import Path

import pytest
import toy
from commands import Plane, until
from kill_harness import Place, Shot, Target, disturbed, gone, observed, undisturbed

SHOTS: dict[Place, tuple[Target, ...]] = {
    "train": ("worker", "trainer"),
    "deploy": ("server",),
}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(toy.shared(tmp_path_factory.getbasetemp().parent))


@pytest.mark.slow
def test_kills_cost_nothing_but_time(tmp_path: Path, scenario: str) -> None:
    plane = Plane(tmp_path / "home")
    with plane.up():
        reference = undisturbed(plane, scenario)
        assert reference.outcome == "accepted"
        left = {place: list(targets) for place, targets in SHOTS.items()}

        def shot(place: Place) -> Shot | None:
            delay = 0.2 * reference.seconds[place]
            return Shot(place, left[place].pop(0), delay) if left.get(place) else None

        places = tuple(place for place, targets in SHOTS.items() for _ in targets)
        report = disturbed(plane, scenario, "under-fire", reference, shot, places=places)
    assert report.wrong == []
    assert (report.outcome, report.lost, report.doubled) == ("accepted", 0, 0)
    assert {kill["target"] for kill in report.kills} == {"worker", "trainer", "server"}
    assert len(report.kills) == 3


@pytest.mark.long
def test_a_tree_that_was_killed_leaves_nothing_behind_and_its_delivery_goes_on(
    tmp_path: Path, scenario: str
) -> None:
    plane = Plane(tmp_path / "home")
    up = plane.start("up")
    until(lambda: (plane.home / "runtime.json").exists(), 60)
    ordered = plane.start("deliver", scenario, "--id", "felled")
    with observed(plane, "felled") as observer:
        assert observer.wait(lambda: any(entry["kind"] == "checkpoint_saved" for entry in observer.entries))
        runtime = plane.runtime()
        os.kill(up.pid, signal.SIGKILL)
        up.communicate()
        until(lambda: all(map(gone, [runtime["server_pid"], *runtime["workers"].values()])), 10)
        recorded = len(observer.entries)
        with plane.up():
            assert observer.wait(lambda: len(observer.entries) > recorded + 2)
            plane.run("deliveries", "cancel", "felled")
            assert observer.wait(observer.closed)
    ordered.kill()
    ordered.communicate()
    assert observer.changed == []
    starts = [entry["payload"] for entry in observer.entries if entry["kind"] == "job_started"]
    saved = [
        entry["payload"]["step"]
        for entry in observer.entries[:recorded]
        if entry["kind"] == "checkpoint_saved"
    ]
    assert [start["resume_step"] for start in starts] == [0, saved[-1]]
    assert starts[1]["fence"] > starts[0]["fence"]
    assert observer.entries[-1]["payload"]["outcome"] == "cancelled_by_operator"
    plane.run("ledger", "verify")
