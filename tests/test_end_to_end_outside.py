"""Everything from outside the package: a scenario's folder, a base's folder, a fault's file."""

import json
import shutil
from pathlib import Path

import pytest
import toy
from commands import Plane

OUTSIDE = Path(__file__).parent / "faults_outside.py"

pytestmark = [pytest.mark.long, pytest.mark.slow]


def test_a_folder_and_a_base_from_outside_are_delivered(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path / "my-folder"
    shutil.copytree(toy.shared(tmp_path_factory.getbasetemp().parent), folder)
    (folder / "base").rename(tmp_path / "my-model")
    # The scenario's own base is another that knows nothing of the task; the one brought along is trained.
    shutil.copytree(Path("scenarios/bases/micro_1/model"), folder / "base")
    plane = Plane(tmp_path / "home")
    found = plane.json("deliver", str(folder), "--base", str(tmp_path / "my-model"))
    assert found["outcome"] == "accepted"
    opened = plane.facts(found["delivery_id"], "delivery_opened")[0]
    assert list(opened["bases"]) == ["my-model"]
    (tried,) = found["preflights"]
    assert tried["checks"] > 5
    assert tried["failed"] == []


def test_a_fault_from_outside_runs_and_nobody_who_judges_sees_it(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plane = Plane(tmp_path / "home")
    folder = toy.shared(tmp_path_factory.getbasetemp().parent)
    found = plane.json(
        "deliver", str(folder), "--seat", "reference", "--fault", f"{OUTSIDE}:Example", code=None
    )
    assert found["outcome"] not in (None, "platform_fault")
    (planted,) = plane.facts(found["delivery_id"], "fault_planted")
    assert planted["fault"] == f"{OUTSIDE.name}:Example"
    assert planted["digest"]
    judged = json.dumps([found["stages"], found["preflights"], found["flags"]])
    assert "Example" not in judged
    assert "faults_outside" not in judged


def test_a_configuration_that_fails_its_preflight_is_never_started_and_costs_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plane = Plane(tmp_path / "home")
    folder = toy.shared(tmp_path_factory.getbasetemp().parent)
    found = plane.json("deliver", str(folder), "--fault", "labels-all-masked-marker-miss", code=1)
    assert found["outcome"] == "no_model"
    assert [tried["attempt"] for tried in found["preflights"]] == [1, 2, 3]
    for tried in found["preflights"]:
        assert tried["failed"]
        assert all(check["field"] and check["message"] for check in tried["failed"])
    tried = [stage for stage in found["stages"] if stage["name"] == "config"]
    assert [(stage["attempt"], stage["status"]) for stage in tried] == [
        (1, "failed"),
        (2, "failed"),
        (3, "failed"),
    ]
    assert found["jobs"] == []
    assert found["gates"] == []
    assert set(found["meters"].values()) == {0}
    assert "marker" not in json.dumps([found["stages"], found["preflights"]])
