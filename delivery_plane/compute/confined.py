"""Answers that are code, run against their tests in a bounded process that can only compute. Judges nothing else."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from delivery_plane.compute import confined_runner as runner
from delivery_plane.errors import ComputeFault

RUNNER = Path(runner.__file__)
START_SECONDS = 60.0


def passed(answers: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether each (code, tests) passes; what hangs, crashes or exceeds its limits does not.

    The order counts: results of the same answers in the same order are the same. Raises ComputeFault when this
    machine cannot confine a process, or the runner itself fails.
    """
    if not answers:
        return []
    seconds = START_SECONDS + len(answers) * (runner.WALL_SECONDS + 1)
    with tempfile.TemporaryDirectory(prefix="answers-") as empty:
        process = subprocess.Popen(
            # As isolated mode, but for the environment: only there can the order of sets be fixed.
            [sys.executable, "-s", "-P", "-S", "-B", str(RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=empty,
            env={"PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        try:
            verdicts, said = process.communicate(json.dumps(answers).encode(), seconds)
        except subprocess.TimeoutExpired:
            raise ComputeFault(f"running answers that are code: no end within {seconds:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    if process.returncode == runner.UNFIT:
        raise ComputeFault(
            f"running answers that are code: this machine cannot confine a process "
            f"(Linux with seccomp on {' or '.join(runner.ALLOWED)} is needed)"
        )
    if process.returncode or len(verdicts) != len(answers):
        last = (said.decode(errors="replace").strip().splitlines() or ["nothing said"])[-1]
        raise ComputeFault(f"running answers that are code: exit code {process.returncode}: {last[:200]}")
    return [verdict == ord("1") for verdict in verdicts]
