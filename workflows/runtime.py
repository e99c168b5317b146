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
from delivery_plane.files import write_whole
from delivery_plane.settings import Home, Settings
from workflows.client import connect, is_open, start_delivery, wake
from workflows.messages import COMPUTE_QUEUE, GOVERNANCE_QUEUE
from workflows.platform import Platform
from workflows.process import OwnProcess
from workflows.server import EmbeddedServer


class WorkerProcess(OwnProcess):
    """A `delivery-plane worker` in a process of its own."""

    def __init__(self, home: Home, queue: str, address: str, namespace: str) -> None:
        super().__init__(
            [
                sys.executable, "-m", "delivery_plane.cli", "worker", "--queue", queue,
                "--address", address, "--namespace", namespace,
            ],
            home.logs / f"worker-{queue}.log",
            {"DELIVERY_PLANE_HOME": str(home.root)},
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

    def tend(self) -> None:
        """Start again whatever of ours has died. Call it now and then."""
        died = [part for part in (self._server, *self.workers) if part is not None and part.died()]
        for part in died:
            part.start()
        if died:
            self.publish()

    def publish(self) -> None:
        """Write down, for other commands on this home, where the server is and which processes there are."""
        if self._state is None or self._server is None:
            return
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

    An open delivery whose workflow is gone is started again (its facts carry it on); one whose workflow
    waits is woken, in case news came while nobody was there to tell it.
    """
    return asyncio.run(_reconcile(platform, run))


async def _reconcile(platform: Platform, run: Runtime) -> list[str]:
    client = await connect(run.address, run.namespace)
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
