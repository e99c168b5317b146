"""A process of ours: started with a log, ended with its parent, started again when it died."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from delivery_plane.errors import DeliveryPlaneError, one_line

STOP_SECONDS = 20.0
STEADY_SECONDS = 5.0
"""A process that lived this long had not failed to start."""
LONGEST_PAUSE_SECONDS = 30.0


def die_with_parent(parent: int) -> None:
    """Between fork and exec: have the kernel kill this process when its parent dies (PR_SET_PDEATHSIG).

    At once, not after what is in hand: the next runtime on the home must not meet this one's remains.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)


class OwnProcess:
    """One child process; its output is appended to `log`."""

    def __init__(
        self, what: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.what = what
        self.log = log
        self._command = command
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._found_dead = False
        self._short_lives = 0

    def start(self) -> None:
        """Start it, or start it again. Raises OSError."""
        self._started_at = time.monotonic()
        self._found_dead = False
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                preexec_fn=partial(die_with_parent, os.getpid()),
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

    def start_if_died(self) -> str | None:
        """Start it again if it has ended, after a pause that grows when it keeps ending. What there is to say."""
        if not self.died():
            return None
        since_start = time.monotonic() - self._started_at
        if not self._found_dead and since_start > STEADY_SECONDS:
            self._short_lives = 0
        self._found_dead = True
        if self._short_lives and since_start < min(2.0**self._short_lives, LONGEST_PAUSE_SECONDS):
            return None
        self._short_lives += 1
        assert self._process
        how = self._process.returncode
        ended = f"{self.what} had ended ({f'signal {-how}' if how < 0 else f'exit code {how}'})"
        try:
            self.start()
        except (OSError, DeliveryPlaneError) as error:
            return f"{ended} and does not start, which is tried again: {one_line(error, 300)}"
        return f"{ended} and was started again"

    def stop(self) -> None:
        """End it, gently first."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
