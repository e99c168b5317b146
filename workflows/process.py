"""A process of ours: started with a log, ended with its parent, started again when it died."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 20.0


def die_with_parent() -> None:
    """Between fork and exec: have the kernel end this process when its parent dies (PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)


class OwnProcess:
    """One child process; its output is appended to `log`."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._command = command
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                preexec_fn=die_with_parent,
                # Ctrl-C is for the parent, which then ends its children in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        """Its process id once started."""
        return self._process.pid if self._process else None

    def died(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End it, gently first."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
