"""What must stay light does: no process but a plane's child loads the training libraries."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent

TRAINING = ("torch", "transformers", "trl", "peft", "lm_eval", "datasets", "accelerate", "deepspeed")
DRAWING = ("altair", "jinja2", "vl_convert")

_IMPORT_ALL = """
import importlib, json, pkgutil, sys
packages, left_out, watched = json.loads(sys.argv[1])
names = []
for package in packages:
    module = importlib.import_module(package)
    names.append(package)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), package + "."):
        if found.name not in left_out:
            importlib.import_module(found.name)
            names.append(found.name)
print(json.dumps([names, [name for name in watched if name in sys.modules]]))
"""

_HELP = """
import json, sys
from delivery_plane.cli.app import main
sys.argv = ["delivery-plane", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps([name for name in json.loads(%r) if name in sys.modules]))
"""


def _python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _run_by_hand() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return next(
        contract["protected_modules"]
        for contract in settings["contracts"]
        if contract["id"] == "made-by-hand"
    )


def test_governance_loads_no_training_library() -> None:
    packages = [
        "oracle",
        "stages",
        "scenarios",
        "workflows",
        "human_arm",
        "delivery_plane.seat",
        "delivery_plane.ledger",
        "delivery_plane.gates",
        "delivery_plane.settings",
        "delivery_plane.compute.local.plane",
    ]
    names, loaded = json.loads(
        _python(_IMPORT_ALL, json.dumps([packages, _run_by_hand(), [*TRAINING, *DRAWING]]))
    )
    assert {"oracle.judge", "stages.train", "scenarios.seats.reference", "workflows.worker"} <= set(names)
    assert "human_arm.report.charts" in names
    assert loaded == []


def test_the_oracle_loads_no_database_and_no_server() -> None:
    watched = ["sqlmodel", "sqlalchemy", "temporalio", *TRAINING]
    names, loaded = json.loads(_python(_IMPORT_ALL, json.dumps([["oracle"], [], watched])))
    assert "oracle.judge" in names
    assert loaded == []


def test_help_is_light() -> None:
    watched = ["pydantic", "temporalio", "sqlmodel", "sqlalchemy", "scipy", "numpy", *TRAINING, *DRAWING]
    shown = _python(_HELP % json.dumps(watched))
    assert "demo" in shown
    assert json.loads(shown.splitlines()[-1]) == []
