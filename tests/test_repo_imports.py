"""The arrows between folders hold, and a forbidden import in any of them is found."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("delivery_plane", "stages", "oracle", "scenarios", "workflows", "human_arm")

PLANTED = [
    ("delivery_plane/meter.py", "from stages.catalog import STAGE_OF", "layers"),
    ("delivery_plane/ledger.py", "import workflows.client", "layers"),
    ("delivery_plane/facts/base.py", "from delivery_plane.ledger import Ledger", "layers"),
    ("delivery_plane/seat/seat.py", "from delivery_plane.compute.plane import ComputePlane", "layers"),
    ("delivery_plane/gates.py", "import temporalio.client", "temporal"),
    ("delivery_plane/settings.py", "import torch", "training-libraries"),
    ("delivery_plane/compute/local/plane.py", "from delivery_plane.compute.local import trainer", "children"),
    ("delivery_plane/compute/local/children.py", "import transformers", "training-libraries"),
    ("stages/train.py", "from oracle import detector", "layers"),
    ("stages/eval.py", "from delivery_plane.compute.local.plane import LocalPlane", "any-plane"),
    ("stages/plan.py", "import sqlalchemy", "database"),
    ("oracle/judge.py", "from stages.catalog import STAGE_OF", "layers"),
    ("oracle/detector.py", "from delivery_plane.meter import used", "oracle-judges-records"),
    ("oracle/stats.py", "import time", "oracle-is-pure"),
    ("scenarios/catalog.py", "import workflows.client", "layers"),
    ("scenarios/seats/reference.py", "from scenarios.bases.micro_1 import make", "made-by-hand"),
    ("workflows/activities.py", "import torch", "training-libraries"),
    ("workflows/activities.py", "import accelerate", "unused-libraries"),
    ("workflows/delivery.py", "from oracle.judge import judge_stage", "workflow-orders"),
    ("scenarios/catalog.py", "import altair", "pictures"),
    ("human_arm/__init__.py", "import workflows.client", "layers"),
    ("human_arm/__init__.py", "import peft", "training-libraries"),
]


def _contracts() -> list[dict[str, object]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts: list[dict[str, object]] = settings["contracts"]
    return contracts


def _lint(tree: Path, contract: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"]
    if contract:
        command += ["--contract", contract]
    return subprocess.run(
        command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the repository's Python files."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    return tmp_path


def test_all_contracts_are_kept() -> None:
    done = _lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Contracts: {len(_contracts())} kept, 0 broken." in done.stdout


def test_the_copy_itself_is_clean(tree: Path) -> None:
    done = _lint(tree)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("module", "planted", "contract"), PLANTED)
def test_a_forbidden_import_is_found(tree: Path, module: str, planted: str, contract: str) -> None:
    path = tree / module
    # In a function's body, where it is easiest to overlook.
    path.write_text(f"{path.read_text()}\n\ndef _lazily() -> None:\n    {planted}\n")
    done = _lint(tree, contract)
    assert done.returncode == 1
    assert "0 kept, 1 broken" in done.stdout, done.stdout + done.stderr


def test_every_folder_has_a_planted_import() -> None:
    assert {module.split("/")[0] for module, _, _ in PLANTED} == set(FOLDERS)


def test_every_contract_has_a_planted_import() -> None:
    assert {contract for _, _, contract in PLANTED} == {contract["id"] for contract in _contracts()}


def test_every_module_has_its_place_in_the_layers() -> None:
    layers = next(contract["layers"] for contract in _contracts() if contract["id"] == "layers")
    assert isinstance(layers, list)
    placed = {name.strip(" ()") for layer in layers for name in layer.replace("|", ":").split(":")}
    modules = {path.stem for path in (ROOT / "delivery_plane").glob("*.py") if path.stem != "__init__"}
    modules |= {path.parent.name for path in (ROOT / "delivery_plane").glob("*/__init__.py")}
    missing = {f"delivery_plane.{name}" for name in modules} - placed
    assert not missing, "give these a place in the `layers` contract of pyproject.toml"
