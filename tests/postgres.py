"""A real PostgreSQL server of one's own: started from the system's binaries, on a socket, as a user who is not root."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from pathlib import Path

import psycopg

START_SECONDS = 60


@lru_cache(maxsize=1)
def binaries() -> Path | None:
    """Where the server's programs lie, or None where PostgreSQL is not installed."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which("postgres")
    return Path(found).parent if found else None


class Postgres:
    """One server; `database()` gives a URL of an empty database on it."""

    def __init__(self, *, durable: bool = False) -> None:
        """`durable`: sync to disk as in production; tests that kill nothing do without."""
        programs = binaries()
        assert programs, "PostgreSQL is not installed"
        self._programs = programs
        self._names = count(1)
        # The server refuses to run as root; a path of a socket must be short.
        self._user = _somebody_else() if os.getuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))
        if self._user:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self._options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={self.folder}"]
        if not durable:
            self._options += ["-c", "fsync=off", "-c", "full_page_writes=off"]
        self._run(
            "initdb",
            "-D",
            str(self.folder / "data"),
            "-U",
            "tester",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        )
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        """Start it, or start it again, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *self._options],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, **self._as(),
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            with contextlib.suppress(subprocess.CalledProcessError):
                self._run("psql", "-h", str(self.folder), "-U", "tester", "-d", "postgres", "-c", "SELECT 1")
                return self.process
            time.sleep(0.1)
        raise AssertionError(f"PostgreSQL did not answer in {START_SECONDS} s")

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"ledger_{next(self._names)}"
        with psycopg.connect(f"postgresql://tester@/postgres?host={self.folder}", autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql://tester@/{name}?host={self.folder}"

    def kill(self) -> None:
        """End the server and every process of it at once, as a crash does."""
        children = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in (self.process.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        # The next server waits until the last process of this one has let go of the shared memory.
        for pid in map(int, children):
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.01)

    def stop(self) -> None:
        """End it and remove what it kept."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [str(self._programs / program), *words],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._as(),
        )

    def _as(self) -> dict[str, int]:
        return {"user": self._user.pw_uid, "group": self._user.pw_gid} if self._user else {}


def _somebody_else() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise AssertionError("no user but root to run PostgreSQL as")


@contextlib.contextmanager
def postgres(*, durable: bool = False) -> Iterator[Postgres]:
    """A server for as long as the context lasts."""
    server = Postgres(durable=durable)
    try:
        yield server
    finally:
        server.stop()
