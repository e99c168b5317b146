"""Answers that are code, run against their tests in bounded processes that can only compute. Judges nothing else."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from delivery_plane.compute import confined_runner as runner
from delivery_plane.errors import ComputeFault

RUNNER = Path(runner.__file__)
ANSWER_SECONDS = runner.WALL_SECONDS + 60.0
"""How long the runner may take for one answer, its own start included."""

_lock = threading.Lock()
_runners: dict[int, "subprocess.Popen[bytes]"] = {}
"""By process id, kept for the next answers: a forked process must not share its parent's."""


def passed(answers: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether each (code, tests) passes; what hangs, crashes or exceeds its limits does not.

    Raises ComputeFault when this machine cannot confine a process, or the runner itself fails.
    """
    with _lock:
        return [_passes(code, tests) for code, tests in answers]


def _passes(code: str, tests: str) -> bool:
    process = _runners.get(os.getpid()) or _start()
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(json.dumps([code, tests]).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_SECONDS)
        verdict = os.read(process.stdout.fileno(), 1) if ready else b""
    except BrokenPipeError:
        verdict = b""
    except BaseException:
        _end(process)  # its next verdict would be taken for another answer's
        raise
    if verdict not in (b"0", b"1"):
        raise ComputeFault(f"running answers that are code: {_end(process)}")
    return verdict == b"1"


def _start() -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        # As isolated mode, but for the environment: only there can the order of sets be fixed.
        [sys.executable, "-s", "-P", "-S", "-B", str(RUNNER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONHASHSEED": "0"},
        start_new_session=True,
    )
    _runners[os.getpid()] = process
    return process


def _end(process: "subprocess.Popen[bytes]") -> str:
    """End a runner that is of no more use; why it was of none."""
    del _runners[os.getpid()]
    try:
        code = process.wait(1)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    _, said = process.communicate()
    if code == runner.UNFIT:
        needed = " or ".join(runner.ALLOWED)
        return f"this machine cannot confine a process; Linux with seccomp on {needed} is needed"
    last = (said.decode(errors="replace").strip().splitlines() or ["nothing said"])[-1]
    return f"the runner ended ({code}): {last[:200]}"
