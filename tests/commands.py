"""The command line as a user runs it: a home of one's own, `up` in the background, commands beside it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = (sys.executable, "-m", "delivery_plane.cli")


@dataclass
class Plane:
    """One home folder and the commands run on it."""

    home: Path
    settings: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "DELIVERY_PLANE_HOME": str(self.home), **self.settings}

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*PROGRAM, *words],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, code: int | None = 0, seconds: float = 300) -> str:
        """Standard output of a command that must end with `code` (None: whichever)."""
        done = subprocess.run(
            [*PROGRAM, *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert code is None or done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def json(self, *words: str, code: int | None = 0, seconds: float = 300) -> Any:
        return json.loads(self.run(*words, "--json", code=code, seconds=seconds))

    def entries(self, delivery_id: str) -> list[dict[str, Any]]:
        return self.json("ledger", "show", delivery_id)

    def facts(self, delivery_id: str, kind: str) -> list[dict[str, Any]]:
        return [entry["payload"] for entry in self.entries(delivery_id) if entry["kind"] == kind]

    def runtime(self) -> dict[str, Any]:
        return json.loads((self.home / "runtime.json").read_text())

    @contextlib.contextmanager
    def up(self) -> Iterator["subprocess.Popen[str]"]:
        """`delivery-plane up` for as long as the context lasts."""
        process = self.start("up")
        try:
            until(lambda: (self.home / "runtime.json").exists() or process.poll() is not None, 60)
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def until(ready: Callable[[], Any], seconds: float) -> Any:
    """What `ready` returns once it is true. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < deadline, f"not ready in {seconds} s"
        time.sleep(0.2)
    return found
