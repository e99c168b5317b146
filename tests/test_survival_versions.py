"""Deploying a new build: a delivery stays on the build that started it, on a real server with versioned workers."""

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest
from commands import Plane, until
from kill_harness import kinds

from delivery_plane.delivery import DeliverySpec
from delivery_plane.settings import Home
from workflows.client import cancel, connect, outcome, start_delivery
from workflows.server import EmbeddedServer, temporal_binary


@pytest.mark.long
def test_a_delivery_stays_on_the_build_that_started_it(tmp_path: Path) -> None:
    server = EmbeddedServer(Home(tmp_path / "server").create())
    server.start()
    plane = Plane(tmp_path / "home", {"DELIVERY_PLANE_ADDRESS": server.address})
    words = ("--queue", "governance", "--address", server.address, "--deployment", "dp", "--build-id")
    workers: list[subprocess.Popen[str]] = []
    try:
        for build, delivery_id in (("one", "older"), ("two", "newer")):
            workers.append(plane.start("worker", *words, build))
            until(lambda build=build: promoted(server.address, build), 60)
            asyncio.run(start(server.address, delivery_id))
            until(lambda delivery_id=delivery_id: "stage_opened" in kinds(plane.home, delivery_id), 120)
        for delivery_id in ("older", "newer"):
            assert asyncio.run(end(server.address, delivery_id)) == "cancelled_by_operator"
        assert asyncio.run(builds(server.address, "older")) == {"one"}
        assert asyncio.run(builds(server.address, "newer")) == {"two"}
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.communicate(timeout=60)
        server.stop()


def promoted(address: str, build: str) -> bool:
    """Whether a build of the deployment could be made the current one: its worker must have polled."""
    done = subprocess.run(
        [
            str(temporal_binary()), "--address", address, "worker", "deployment", "set-current-version",
            "--deployment-name", "dp", "--build-id", build, "--yes",
        ],
        capture_output=True,
        check=False,
    )  # fmt: skip
    return done.returncode == 0


async def start(address: str, delivery_id: str) -> None:
    spec = DeliverySpec(delivery_id=delivery_id, scenario="support-intents", seat="someone")
    await start_delivery(await connect(address), spec)


async def end(address: str, delivery_id: str) -> str:
    client = await connect(address)
    await cancel(client, delivery_id)
    return (await outcome(client, delivery_id)).outcome


async def builds(address: str, delivery_id: str) -> set[str]:
    """Builds that worked on a delivery's workflow."""
    client = await connect(address)
    history = await client.get_workflow_handle(delivery_id).fetch_history()
    done = [event.workflow_task_completed_event_attributes for event in history.events]
    return {task.deployment_version.build_id for task in done if task.deployment_version.build_id}
