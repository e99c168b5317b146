"""Runs answers that are code against their tests, in processes that can only compute. A script, with no import of ours.

The answer and its tests run in two processes. The tests hold a stand-in for each name of the answer; calling one sends
plain values across and brings a plain value back. So an answer can change nothing that judges it: neither the tests,
nor what they call, nor the verdict, and it never sees what a test expects. Tests see what functions return and raise,
not what they do to their arguments.
"""

import ast
import builtins
import contextlib
import ctypes
import importlib
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from typing import Any

# What an answer may import: once confined, a process can load nothing more.
# fmt: off
MODULES = (
    "abc", "array", "bisect", "calendar", "cmath", "collections", "collections.abc", "copy", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "heapq", "itertools", "json", "math", "numbers", "operator", "random",
    "re", "statistics", "string", "textwrap", "time", "typing",
)
# fmt: on

CPU_SECONDS = 1
WALL_SECONDS = 10.0
LONGEST_MESSAGE = 1 << 16
UNFIT = 3
"""Exit status when this machine cannot confine a process."""

LIMITS = {
    resource.RLIMIT_AS: 256 << 20,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 16,
    resource.RLIMIT_NPROC: 0,
}

# By machine: the architecture as the kernel's audit knows it, and the numbers of the system calls that computing needs.
# No file is opened, no process started or signalled, no socket made; waiting is possible only for one's own pipes.
ALLOWED = {
    "x86_64": (
        0xC000003E,
        {"read": 0, "write": 1, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25, "madvise": 28,
         "getpid": 39, "exit": 60, "futex": 202, "clock_gettime": 228, "exit_group": 231, "getrandom": 318},
    ),
    "aarch64": (
        0xC00000B7,
        {"read": 63, "write": 64, "exit": 93, "exit_group": 94, "futex": 98, "clock_gettime": 113, "getpid": 172,
         "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278},
    ),
}  # fmt: skip

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: ld [k], jeq k, ret k
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050001, 0x7FFF0000  # refused with EPERM

_libc = ctypes.CDLL(None, use_errno=True)


def _control(option: int, value: Any, extra: Any = 0) -> None:
    """Call prctl. Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), extra, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def confine(keep: tuple[int, ...]) -> None:
    """Leave this process its descriptors `keep` and pure computing, for good. Raises OSError or KeyError."""
    for descriptor in range(64):
        if descriptor not in keep:
            with contextlib.suppress(OSError):  # most are not open
                os.close(descriptor)
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)
    for limit, value in LIMITS.items():
        resource.setrlimit(limit, (value, value))
    architecture, calls = ALLOWED[os.uname().machine]
    numbers = list(calls.values())
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    steps += [(_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]

    program = Program(len(steps), ctypes.addressof(code))
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    _control(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))


class Pipe:
    """Plain values over a pair of descriptors, a line each."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes, self._rest = reads, writes, b""

    def send(self, value: object) -> None:
        """Send one value, as Python would show it."""
        data = repr(value).encode() + b"\n"
        if len(data) > LONGEST_MESSAGE:
            raise ValueError("longer than a value may be")
        while data:
            data = data[os.write(self._writes, data) :]

    def receive(self) -> Any:
        """The next value. Raises EOFError, ValueError and whatever the parser has to say."""
        while b"\n" not in self._rest:
            found = os.read(self._reads, LONGEST_MESSAGE)
            if not found or len(self._rest) > LONGEST_MESSAGE:
                raise EOFError
            self._rest += found
        line, _, self._rest = self._rest.partition(b"\n")
        return ast.literal_eval(line.decode())


_RAISED = frozenset(
    kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, StopIteration)
)
"""Exceptions of an answer that its tests see as they are."""


class Names(dict[str, Any]):
    """The names tests may use: Python's own first, then the answer's, which is asked for them."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe
        self.asked = False

    def __missing__(self, name: str) -> Any:
        # An answer that defines `abs` or `sorted` would otherwise be what its own result is looked at with.
        if hasattr(builtins, name):
            raise KeyError(name)
        is_function, value = self._ask(name, None)
        return (lambda *args, **kwargs: self._ask(name, (args, kwargs))[1]) if is_function else value

    def _ask(self, name: str, call: object) -> tuple[bool, Any]:
        self._pipe.send((name, call))
        outcome, value = self._pipe.receive()
        self.asked = True
        if outcome == "raised":
            kind = getattr(builtins, str(value), RuntimeError)
            # One that ends an iteration would cut the tests' own short, and nothing left to compare is all equal.
            raise RuntimeError(value) if kind not in _RAISED else kind
        return outcome == "function", value


def answer(pipe: Pipe) -> None:
    """Run the answer that comes first and then serve its names, for as long as they are asked for."""
    names: dict[str, Any] = {"__name__": "answer"}
    exec(compile(pipe.receive(), "<answer>", "exec"), names)
    while True:
        name, call = pipe.receive()
        try:
            value = names[name]
            if call is not None:
                value = value(*call[0], **call[1])
            pipe.send(("function", None) if call is None and callable(value) else ("value", value))
        except Exception as error:
            pipe.send(("raised", "NameError" if name not in names else type(error).__name__))


def test(code: str, tests: str, pipe: Pipe, verdict: int) -> None:
    """Run tests against the answer at the other end; say so when all hold, and say nothing else."""
    pipe.send(code)
    names = Names(pipe)
    exec(compile(tests, "<tests>", "exec"), names)
    if names.asked:  # tests that never turned to the answer prove nothing of it
        os.write(verdict, b"1")


def _start(keep: tuple[int, ...], work: Callable[[], object]) -> int:
    """The id of a confined child that does `work`; its exit status is 0 only if that came to its end."""
    child = os.fork()
    if child:
        return child
    try:
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        confine(keep)
        random.seed(0)  # what draws draws the same each time
        work()
        os._exit(0)
    finally:
        os._exit(1)


def _end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _nursery(orders: socket.socket) -> None:
    """Start a process for each answer. This one has never seen a test, so there is none in the memory it hands down."""
    while True:
        order, kept, _, _ = socket.recv_fds(orders, 1, 2)
        if not order:
            return
        pipe = Pipe(*kept)
        child = _start(tuple(kept), lambda pipe=pipe: answer(pipe))  # type: ignore[misc]
        for descriptor in kept:
            os.close(descriptor)
        orders.recv(1)
        _end(child)


def _judge(code: str, tests: str, nursery: socket.socket) -> bool:
    """Whether the answer passes, in bounded time and memory."""
    requests, replies, verdict = os.pipe(), os.pipe(), os.pipe()
    socket.send_fds(nursery, [b"+"], [requests[0], replies[1]])
    pipe = Pipe(replies[0], requests[1])
    keep = (replies[0], requests[1], verdict[1])
    judge = _start(keep, lambda: test(code, tests, pipe, verdict[1]))
    for descriptor in (*requests, *replies, verdict[1]):
        os.close(descriptor)
    ready, _, _ = select.select([verdict[0], sys.stdin], [], [], WALL_SECONDS)
    if ready == [sys.stdin]:
        sys.exit()  # nobody waits for the verdict; with this process all others end
    passed = bool(ready) and os.read(verdict[0], 1) == b"1"
    os.close(verdict[0])
    _end(judge)
    nursery.send(b"-")
    return passed


def _refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except PermissionError:
        return True
    return False


def _try_out() -> bool:
    """Whether a process of this machine can be confined: it may neither open, nor start, nor connect, nor signal."""

    def attempts() -> None:
        tries = (
            lambda: os.open("/", os.O_RDONLY),
            os.fork,
            socket.socket,
            lambda: os.kill(os.getpid(), 0),
        )
        if not all(_refused(attempt) for attempt in tries):
            raise OSError("not confined")

    return os.waitpid(_start((), attempts), 0)[1] == 0


def main() -> None:
    """For each line [code, tests] of JSON that comes in, write `1` or `0`; the next comes when that was read."""
    nowhere = tempfile.mkdtemp()
    os.chdir(nowhere)
    os.rmdir(nowhere)
    for module in MODULES:
        importlib.import_module(module)
    if not _try_out():
        sys.exit(UNFIT)
    ours, theirs = socket.socketpair()
    if not os.fork():
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        ours.close()
        _nursery(theirs)
        os._exit(0)
    theirs.close()
    for line in sys.stdin.buffer:
        code, tests = json.loads(line)
        os.write(1, b"1" if _judge(code, tests, ours) else b"0")


if __name__ == "__main__":
    main()
