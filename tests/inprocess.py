"""The command line in this process, and the home and folders it is tried on."""

import io
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import records
from ledgers import DELIVERY, open_delivery, replay

from delivery_plane.cli.app import main
from delivery_plane.delivery import GateKind, GateRequest
from delivery_plane.settings import Home
from workflows.platform import open_platform

LONG = "x" * 300
AT_MOST_SECONDS = 120
"""No refusal takes this long, on however busy a machine."""


@dataclass(frozen=True)
class Ran:
    """How one command ended."""

    code: Any
    out: str
    err: str


def _too_slow(*_: object) -> None:
    raise AssertionError(f"no end in {AT_MOST_SECONDS} s")


def run(*arguments: str) -> Ran:
    """The command line in this process; a defect of ours is never one of its answers."""
    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(AT_MOST_SECONDS)
    try:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["delivery-plane", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "a defect in delivery-plane" not in err.getvalue(), err.getvalue()
    assert "Traceback" not in err.getvalue() + out.getvalue()
    return Ran(ended.value.code, out.getvalue(), err.getvalue())


def one_line_of(ran: Ran, code: int) -> str:
    """What was said by a command that was refused: one line, and nothing a script could take for a result."""
    assert ran.code == code, ran
    assert ran.err.startswith("delivery-plane: ")
    assert ran.err.endswith("\n")
    assert len(ran.err.splitlines()) == 1, ran.err
    assert len(ran.err) < 2100
    assert ran.err.rstrip("\n").isprintable()
    assert ran.out == ""
    return ran.err


def refused(*arguments: str, code: int = 2) -> str:
    """Run what must be refused; returns the one line that says why."""
    return one_line_of(run(*arguments), code)


def snapshot(folder: Path) -> dict[str, object]:
    """Everything under a folder; what a database keeps beside itself while it is open is left out."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = ("link", os.readlink(path))
        elif path.is_file() and not path.name.endswith(("-wal", "-shm")):
            found[str(path.relative_to(folder))] = path.read_bytes()
        elif not path.name.endswith(("-wal", "-shm")):
            found[str(path.relative_to(folder))] = oct(path.stat().st_mode)
    return found


def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and no setting from outside."""
    for name in os.environ:
        if name.startswith("DELIVERY_PLANE"):
            monkeypatch.delenv(name)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def make_used_home(folder: Path) -> Path:
    """A home with a delivery that closed, one that waits at a gate, and an approver."""
    made = open_platform(Home(folder))
    replay(made, records.healthy_record(), made.identities.new("seat-test", "seat"))
    made.ledger.checkpoint(DELIVERY)
    open_delivery(made, delivery_id="delivery-2")
    request = GateRequest(
        delivery_id="delivery-2", gate_id="spend-2", kind=GateKind.SPEND, attempt=1, deadline_seconds=3600
    )
    made.gates.open(request, '{"decide": "spend this?"}')
    made.ledger.checkpoint("delivery-2")
    made.identities.new("alice", "approver")
    made.ledger.close()
    return folder
