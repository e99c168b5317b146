"""`up` and `worker`: the long-running commands."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Literal

from delivery_plane.cli.shared import open_home, say
from delivery_plane.errors import BadInput
from delivery_plane.settings import check_address
from workflows.client import Tls, connect
from workflows.messages import COMPUTE_QUEUE
from workflows.platform import open_platform
from workflows.runtime import reconcile, runtime
from workflows.worker import build_worker, run_worker

TEND_SECONDS = 1.0


def up() -> int:
    """Run the embedded server and both workers on this home until Ctrl-C; every open delivery goes on."""
    # Handlers of our own: a shell that starts this in the background makes it ignore Ctrl-C otherwise.
    # Before anything is started, so that there is no moment at which a signal leaves something behind.
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    settings, home = open_home()
    if settings.address:
        raise BadInput(
            f"up: brings a server of its own, and DELIVERY_PLANE_ADDRESS names {settings.address}; unset it,"
            " or start `worker`s there"
        )
    parts = open_platform(home)
    with runtime(home, settings) as run:
        if not run.workers:
            raise BadInput(f"{home.root}: a runtime is up already, Temporal at {run.address}; stop it first")
        say(f"Temporal at {run.address} (namespace {run.namespace})")
        say(f"state in {home.root}; logs in {home.logs}")
        for delivery_id in reconcile(parts, run):
            say(f"going on: {delivery_id}")
        say("Ctrl-C stops; what is open goes on at the next `up`.")
        while not stop.wait(TEND_SECONDS):
            for line in run.tend():
                say(line)
        say("stopping")
    return 0


def worker(
    *,
    queue: Literal["governance", "compute"],
    address: str | None = None,
    namespace: str | None = None,
    tls: bool = False,
    tls_server_ca: Path | None = None,
    tls_client_cert: Path | None = None,
    tls_client_key: Path | None = None,
    deployment: str | None = None,
    build_id: str | None = None,
) -> int:
    """Run one worker until SIGTERM or Ctrl-C.

    Parameters
    ----------
    queue
        governance: orders, judges, drives scripted seats, and loads no torch. compute: trains and evaluates.
    address
        host:port of the Temporal server.
    namespace
        Temporal namespace.
    tls
        Speak TLS; implied by any of the TLS files.
    tls_server_ca
        PEM file of the server's certificate authority.
    tls_client_cert
        PEM file of this worker's certificate.
    tls_client_key
        PEM file of this worker's key.
    deployment
        Worker Deployment name, for Worker Versioning; needs --build-id.
    build_id
        This build's id within the deployment.
    """
    # Loaded here: the plane's parent side, which starts children but never imports torch itself.
    from delivery_plane.compute.local.children import start_fork_server
    from delivery_plane.compute.local.plane import LocalPlane

    settings, home = open_home()
    target = settings.address if address is None else check_address(address)
    if target is None:
        raise BadInput("worker: which server? give --address HOST:PORT, or set DELIVERY_PLANE_ADDRESS")
    if bool(deployment) != bool(build_id):
        raise BadInput("worker: --deployment and --build-id go together")
    secured = Tls.from_files(tls, tls_server_ca, tls_client_cert, tls_client_key)
    if queue == COMPUTE_QUEUE:
        # The libraries take ten seconds to import. After a crash, steps wait for them.
        start_fork_server()

    async def serve() -> None:
        client = await connect(target, namespace or settings.namespace, secured)
        # Nothing is made on disk for a server that is not there.
        plane = LocalPlane(home.cache, home.logs)
        parts = open_platform(home, plane)
        if queue == COMPUTE_QUEUE:
            # Shows early that the libraries are there, while the first stages run.
            threading.Thread(target=plane.warm, daemon=True).start()
        say(f"worker {os.getpid()} polls {queue} at {target}")
        await run_worker(build_worker(client, parts, queue, deployment, build_id))

    asyncio.run(serve())
    return 0
