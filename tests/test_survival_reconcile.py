"""What `up` makes of a server and a ledger that do not agree, on a real server."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from commands import Plane, until
from kill_harness import kinds
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from delivery_plane.delivery import DeliverySpec, StageName
from delivery_plane.seat.seat import Seat
from delivery_plane.settings import Home
from scenarios.catalog import load_scenario
from scenarios.seats.catalog import SEATS
from scenarios.seats.turn import Turn
from workflows.client import connect, start_delivery, wake
from workflows.platform import open_platform
from workflows.server import EmbeddedServer

T = TypeVar("T")
SCENARIO = "support-intents"


def asked(plane: Plane, ask: Callable[[Client], Awaitable[T]]) -> T:
    """An answer from the server that runs on the home."""

    async def answer() -> T:
        return await ask(await connect(plane.runtime()["address"]))

    return asyncio.run(answer())


def status(plane: Plane, delivery_id: str) -> WorkflowExecutionStatus | None:
    async def ask(client: Client) -> WorkflowExecutionStatus | None:
        return (await client.get_workflow_handle(delivery_id).describe()).status

    return asked(plane, ask)


def order(plane: Plane, delivery_id: str) -> None:
    """A delivery whose seat is nobody's script: it opens intake and waits for a claim."""
    spec = DeliverySpec(delivery_id=delivery_id, scenario=SCENARIO, seat="someone")
    asked(plane, lambda client: start_delivery(client, spec))


def waits_for_its_claim(plane: Plane, delivery_id: str) -> bool:
    return "stage_opened" in kinds(plane.home, delivery_id)


def back_up(home: Path, copy: Path) -> None:
    copy.mkdir()
    for path in [*home.glob("ledger.sqlite*"), home / "heads", home / "deliveries"]:
        shutil.copytree(path, copy / path.name) if path.is_dir() else shutil.copy(path, copy / path.name)


def restore(home: Path, copy: Path) -> None:
    for path in home.glob("ledger.sqlite*"):
        path.unlink()
    shutil.rmtree(home / "heads")
    for path in [*copy.glob("ledger.sqlite*"), copy / "heads"]:
        shutil.copytree(path, home / path.name) if path.is_dir() else shutil.copy(path, home / path.name)


@pytest.mark.long
def test_the_ledger_is_right_about_which_deliveries_are_open(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "home")
    home = Home(plane.home).create()
    server = EmbeddedServer(home)
    server.start()
    try:
        spec = DeliverySpec(delivery_id="early", scenario=SCENARIO, seat="someone")
        asyncio.run(_start(server.address, spec))
    finally:
        server.stop()

    # A workflow that has not opened its delivery yet goes on.
    with plane.up():
        until(lambda: waits_for_its_claim(plane, "early"), 120)
        for name in ("closing", "ahead"):
            order(plane, name)
            until(lambda name=name: waits_for_its_claim(plane, name), 120)
        first = asked(plane, lambda client: _run_id(client, "ahead"))
    back_up(plane.home, tmp_path / "copy")
    with plane.up():
        # After the back-up one delivery is new, one goes on, one closes, one is ended behind the platform's back.
        order(plane, "lost")
        until(lambda: waits_for_its_claim(plane, "lost"), 120)
        claim_intake(plane, "ahead")
        until(lambda: kinds(plane.home, "ahead").count("stage_opened") == 2, 60)
        plane.run("deliveries", "cancel", "closing")
        until(lambda: status(plane, "closing") is WorkflowExecutionStatus.COMPLETED, 60)
        asked(plane, lambda client: _handle(client, "early").terminate("by hand"))
    restore(plane.home, tmp_path / "copy")

    with plane.up():
        until(lambda: status(plane, "lost") is WorkflowExecutionStatus.TERMINATED, 60)
        assert "the ledger holds 0" in asked(plane, lambda client: _reason(client, "lost"))
        until(lambda: asked(plane, lambda client: _run_id(client, "ahead")) != first, 60)
        # It waits for the claim that the restored ledger does not hold.
        claim_intake(plane, "ahead")
        until(lambda: kinds(plane.home, "ahead").count("stage_opened") == 2, 60)
        for name in ("early", "closing", "ahead"):
            until(lambda name=name: status(plane, name) is WorkflowExecutionStatus.RUNNING, 60)
            plane.run("deliveries", "cancel", name)
            until(lambda name=name: "delivery_closed" in kinds(plane.home, name), 60)
            assert kinds(plane.home, name).count("data_profiled") == 1
            # A closed delivery's workflow ends by itself.
            until(lambda name=name: status(plane, name) is WorkflowExecutionStatus.COMPLETED, 60)
    assert "lost" not in plane.run("deliveries", "list")
    plane.run("ledger", "verify")


def claim_intake(plane: Plane, delivery_id: str) -> None:
    """Claim as the holder of the seat, and tell the workflow."""
    parts = open_platform(Home(plane.home))
    seat = Seat(
        parts.ledger,
        delivery_id,
        parts.identities.get("seat-someone"),
        load_scenario(SCENARIO).brief,
        wake=lambda: asked(plane, lambda client: wake(client, delivery_id)),
    )
    spec = parts.spec(delivery_id)
    SEATS["reference"].play(seat, Turn(StageName.INTAKE, 1, None, spec.on_flag))
    parts.ledger.close()


async def _start(address: str, spec: DeliverySpec) -> None:
    await start_delivery(await connect(address), spec)


def _handle(client: Client, delivery_id: str) -> WorkflowHandle[Any, Any]:
    return client.get_workflow_handle(delivery_id)


async def _run_id(client: Client, delivery_id: str) -> str:
    return (await _handle(client, delivery_id).describe()).run_id


async def _reason(client: Client, delivery_id: str) -> str:
    history = await _handle(client, delivery_id).fetch_history()
    return history.events[-1].workflow_execution_terminated_event_attributes.reason
