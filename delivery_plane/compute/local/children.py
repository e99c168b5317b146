"""Child processes that do the heavy work for a worker that never loads torch. What they compute is elsewhere.

A child ends with its worker even when that is killed, and a child that dies is an error, never a hang:
ComputeFault for what it did itself, Interrupted when something ended it, MachineUnfit when the disk is full.
"""

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Literal

from delivery_plane.errors import ComputeFault, Interrupted, MachineUnfit, attributed, no_room
from delivery_plane.files import lacks_room

ENVIRONMENT = {
    # One thread: two jobs on two cores with two threads each are slower and their times bimodal, and a
    # process forked after its parent used a thread pool can hang.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Nothing is ever fetched, and nothing is reported to anybody.
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}

_FROM_OUTSIDE = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM})
"""Signals that somebody else sends; any other is a crash of the child's own."""
_FORK_SERVER_GONE = 255
"""What multiprocessing reports of a child whose fork server was killed: the child went with it."""

_PR_SET_PDEATHSIG = 1
_logs = itertools.count(1)


def prepare_environment() -> None:
    """Set the environment the training libraries need, before they are imported."""
    os.environ.update(ENVIRONMENT)
    # One device: with several visible, the trainer would split each batch over all of them.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["delivery_plane.compute.local.zygote"])
    return context


def start_fork_server() -> None:
    """Have the fork server load the training libraries (ten seconds of a core) while this process does other things."""
    _context()
    forkserver.ensure_running()


class Channel:
    """The child's end of a streaming job: facts go up, "go" or "stop" comes down."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: object) -> None:
        """Hand one picklable message to the worker."""
        self._connection.send(("message", message))

    def receive(self) -> Any:
        """Wait for the worker's answer. Raises EOFError when the worker is gone."""
        return self._connection.recv()


class Child:
    """One child process, from the worker's side. Use as a context manager: leaving kills what still runs."""

    def __init__(self, what: str, function: str, args: tuple[Any, ...], log: Path, streams: bool) -> None:
        """Start `function` ("module:name") on `args`; a streaming one gets a Channel first."""
        self.what = what
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        context = _context()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_child_main, args=(function, args, theirs, log, streams), daemon=True
        )
        try:
            # It fails when the fork server is killed meanwhile, or the machine has no process to give.
            with attributed(Interrupted, f"{what}: cannot start a process"):
                self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    def send(self, message: object) -> None:
        """Hand one message to the child. Raises what became of it when it is gone."""
        try:
            self._connection.send(message)
        except OSError:
            raise self._died() from None

    def receive(self, timeout_seconds: float | None = None) -> tuple[Literal["message", "result"], Any]:
        """Wait for the next message or the result.

        Raises ComputeFault when the child failed, crashed or is late, Interrupted when it was killed, and
        MachineUnfit when there was no room on its disk.
        """
        ready = wait([self._connection, self._process.sentinel], timeout_seconds)
        if not ready:
            raise ComputeFault(f"{self.what}: no answer within {timeout_seconds:g} s; log: {self.log}")
        try:
            # What a child sent before it died still counts, so the pipe is read first.
            if self._connection.poll():
                kind, value = self._connection.recv()
                if kind == "unfit":
                    raise MachineUnfit(f"{self.what}: {value}; log: {self.log}")
                if kind == "error":
                    raise ComputeFault(f"{self.what}: {value}; log: {self.log}")
                return kind, value
        except (EOFError, OSError):
            pass
        raise self._died()

    def close(self) -> None:
        """Kill the child if it still runs, and wait until it is gone."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join(10)
        self._connection.close()

    def _died(self) -> ComputeFault | Interrupted:
        self._process.join(10)
        code = self._process.exitcode
        signalled = -code if code is not None and code < 0 else None
        how = f"killed by signal {signalled}" if signalled else f"exit code {code}"
        kind = Interrupted if signalled in _FROM_OUTSIDE or code == _FORK_SERVER_GONE else ComputeFault
        return kind(f"{self.what}: the process ended without an answer ({how}); log: {self.log}")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def call_in_child(
    what: str, function: str, *args: Any, logs: Path, timeout_seconds: float | None = None
) -> Any:
    """The result of `function` ("module:name") on `args`, run in a child. Raises as `Child.receive` does."""
    with Child(what, function, args, log_path(logs, what), streams=False) as child:
        return child.receive(timeout_seconds)[1]


def log_path(logs: Path, what: str) -> Path:
    """A log file no other child of this process writes to."""
    return logs / f"{re.sub('[^a-z0-9]+', '-', what.lower())}-{os.getpid()}-{next(_logs)}.log"


def loaded_modules(names: tuple[str, ...]) -> tuple[str, ...]:
    """Which of `names` this process has imported. The no-op job that starts the fork server."""
    import sys

    return tuple(name for name in names if name in sys.modules)


def _child_main(
    function: str, args: tuple[Any, ...], connection: Connection, log: Path, streams: bool
) -> None:
    _end_with_worker()
    prepare_environment()
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        module, _, name = function.partition(":")
        call: Callable[..., Any] = getattr(import_module(module), name)
        answer = ("result", call(Channel(connection), *args) if streams else call(*args))
    except BaseException as error:
        with contextlib.suppress(OSError):  # the log's disk may be what is full
            traceback.print_exc()
        # Not every library says what its write failed of; with the disk full, that is what any failure is about.
        lack = no_room(error) or lacks_room(log.parent)
        lines = str(error).strip().splitlines() or ["no reason given"]
        first = f"{type(error).__name__}: {lines[0][:500]}"
        answer = ("unfit", f"{lack} ({first})") if lack else ("error", first)
    connection.send(answer)
    connection.close()


def _end_with_worker() -> None:
    # Two deaths to follow. The fork server is this process's parent: the kernel tells of its death. The worker
    # is not, and the server outlives it while children hold its pipe: so a thread waits for the worker.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    worker = multiprocessing.parent_process()
    if worker is None:
        return

    def follow(sentinel: int) -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=follow, args=(worker.sentinel,), daemon=True).start()
