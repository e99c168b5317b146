"""A whole platform on one machine: embedded server and one worker process per queue, on one home folder.

One runtime per home: whoever holds the home's lock runs it; others find its address in `runtime.json`.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from delivery_plane.errors import MachineUnfit, ServerFault
from delivery_plane.facts import DeliveryClosed, DeliveryOpened
from delivery_plane.files import lacks_room, write_whole
from delivery_plane.settings import Home, Settings
from workflows.client import (
    Waiting,
    connect,
    is_open,
    known_entries,
    running_deliveries,
    start_delivery,
    terminate,
    waiting,
    wake,
)
from workflows.messages import COMPUTE_QUEUE, GOVERNANCE_QUEUE
from workflows.platform import Platform
from workflows.process import OwnProcess
from workflows.server import EmbeddedServer

LOOK_SECONDS = 5.0


class WorkerProcess(OwnProcess):
    """A `delivery-plane worker` in a process of its own."""

    def __init__(self, home: Home, queue: str, address: str, namespace: str) -> None:
        super().__init__(
            f"the {queue} worker",
            [
                sys.executable, "-m", "delivery_plane.cli", "worker", "--queue", queue,
                "--address", address, "--namespace", namespace,
            ],
            home.logs / f"worker-{queue}.log",
            {"DELIVERY_PLANE_HOME": str(home.root)}
            | ({"DELIVERY_PLANE_DATABASE": home.ledger} if isinstance(home.ledger, str) else {}),
        )  # fmt: skip
        self.queue = queue


class Runtime:
    """The running platform of one home: an address to talk to, and the processes if they are ours."""

    def __init__(
        self,
        address: str,
        namespace: str,
        workers: tuple[WorkerProcess, ...] = (),
        server: EmbeddedServer | None = None,
        state: Path | None = None,
    ) -> None:
        self.address = address
        self.namespace = namespace
        self.workers = workers
        self._server = server
        self._state = state
        self._published = True
        self._lack: str | None = None

    @property
    def embedded(self) -> bool:
        """Whether the server is one of our own, with nobody else's workflows on it."""
        return self._server is not None

    def tend(self) -> list[str]:
        """Start again whatever of ours has died, and say so. Call it now and then; it raises nothing.

        What does not start, for want of disk say, is tried again at a later call.
        """
        parts = [part for part in (self._server, *self.workers) if part is not None]
        said = [line for part in parts if (line := part.start_if_died())]
        if said or not self._published:
            with contextlib.suppress(OSError):  # for want of room: the next call tries again
                self.publish()
        return said + self._room()

    def _room(self) -> list[str]:
        """What changed about the disk: full or read-only, every step waits."""
        if self._state is None:
            return []
        before, self._lack = self._lack, lacks_room(self._state.parent)
        if self._lack and not before:
            return [f"waiting: {self._lack}"]
        return ["the disk has room again"] if before and not self._lack else []

    def publish(self) -> None:
        """Write down, for other commands on this home, where the server is and which processes there are."""
        if self._state is None or self._server is None:
            return
        self._published = False
        state = json.dumps(
            {
                "address": self.address,
                "namespace": self.namespace,
                "pid": os.getpid(),
                "server_pid": self._server.pid,
                "workers": {worker.queue: worker.pid for worker in self.workers},
            }
        )
        write_whole(self._state, state.encode())
        self._published = True


def _lock(home: Home) -> IO[str] | None:
    """The home's lock, or None when somebody else holds it."""
    try:
        file = home.lock.open("a")
    except OSError as error:
        raise MachineUnfit(f"{home.lock}: cannot be opened ({error.strerror})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


@contextlib.contextmanager
def idle(home: Home) -> Iterator[bool]:
    """Whether nothing runs on this home; if so, nothing starts on it while the context lasts."""
    lock = _lock(home)
    yield lock is not None
    if lock is not None:
        lock.close()


def running(home: Home) -> Runtime | None:
    """The runtime that somebody else keeps on this home, or None."""
    lock = _lock(home)
    if lock is not None:
        lock.close()
        return None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # its holder may still be starting
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = json.loads(home.runtime.read_text())
            return Runtime(found["address"], found["namespace"])
        time.sleep(0.2)
    raise ServerFault(
        f"{home.lock} is held, but {home.runtime} names no server; end the process that holds it"
    )


async def waits_for(home: Home, settings: Settings, delivery_id: str) -> Waiting | None:
    """As `workflows.client.waiting`, from a command that knows of no server yet. None also when there is none."""
    try:
        if settings.address:
            address, namespace = settings.address, settings.namespace
        else:
            found = json.loads(home.runtime.read_text())
            address, namespace = found["address"], found["namespace"]
        async with asyncio.timeout(LOOK_SECONDS):
            return await waiting(await connect(address, namespace), delivery_id)
    except (OSError, ValueError, KeyError, ServerFault):  # a timeout is an OSError
        return None


@contextlib.contextmanager
def runtime(home: Home, settings: Settings) -> Iterator[Runtime]:
    """The runtime of this home: the one that runs, or one of our own for as long as the context lasts.

    With `settings.address` set, that server is used and its workers are somebody else's business.
    """
    if settings.address:
        yield Runtime(settings.address, settings.namespace)
        return
    lock = _lock(home)
    if lock is None:
        found = running(home)
        assert found
        yield found
        return
    with contextlib.ExitStack() as stack:
        stack.callback(lock.close)
        if lack := lacks_room(home.root):
            raise MachineUnfit(f"{lack}; free some, or set DELIVERY_PLANE_HOME to another disk")
        home.runtime.unlink(missing_ok=True)
        server = EmbeddedServer(home)
        stack.callback(server.stop)
        server.start()
        workers = tuple(
            WorkerProcess(home, queue, server.address, settings.namespace)
            for queue in (GOVERNANCE_QUEUE, COMPUTE_QUEUE)
        )
        for worker in workers:
            stack.callback(worker.stop)
            worker.start()
        run = Runtime(server.address, settings.namespace, workers, server, home.runtime)
        run.publish()
        stack.callback(home.runtime.unlink, missing_ok=True)
        yield run


def reconcile(platform: Platform, run: Runtime) -> list[str]:
    """Make server and ledger agree on which deliveries are open; returns the ids of those that go on.

    The ledger is right. An open delivery whose workflow is gone is started again (its facts carry it on); one whose
    workflow waits is woken, in case news came while nobody was there to tell it. A workflow that was told of entries
    the ledger does not hold (one restored from an older back-up, or another's) is terminated, on our own server only;
    its delivery, if the ledger knows it and it is open, is started again from what is there.
    """
    return asyncio.run(_reconcile(platform, run))


async def _reconcile(platform: Platform, run: Runtime) -> list[str]:
    client = await connect(run.address, run.namespace)
    if run.embedded:
        for delivery_id in await running_deliveries(client):
            told, held = await known_entries(client, delivery_id), len(platform.ledger.entries(delivery_id))
            if told > held:
                reason = (
                    f"it was told of {told} entries and the ledger holds {held}: not the ledger it ran on"
                )
                await terminate(client, delivery_id, reason)
    going_on = []
    for delivery_id in platform.ledger.deliveries():
        record = platform.ledger.record(delivery_id)
        if record.last(DeliveryClosed) or not record.last(DeliveryOpened):
            continue
        if await is_open(client, delivery_id):
            with contextlib.suppress(ServerFault):  # its worker may still be starting: it reads when it is up
                await wake(client, delivery_id)
        else:
            await start_delivery(client, platform.spec(delivery_id), again=True)
        going_on.append(delivery_id)
    return going_on
