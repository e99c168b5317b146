"""`deliveries`: list, show, watch, fetch, cancel."""

import asyncio
import json as json_module
import shutil
import time
from pathlib import Path
from typing import Any

from cyclopts import App
from rich.table import Table

from delivery_plane.claims import CardClaim
from delivery_plane.cli.deliver import exit_code, report
from delivery_plane.cli.live import Follower
from delivery_plane.cli.shared import existing_platform, open_home, out, print_json, progress, say
from delivery_plane.cli.summary import latest, scorecard, wall_seconds
from delivery_plane.delivery import STAGES, Outcome
from delivery_plane.errors import BadInput, ServerFault
from delivery_plane.facts import (
    ArtifactRegistered,
    DeliveryClosed,
    DeliveryOpened,
    MetersRead,
    StageOpened,
)
from delivery_plane.settings import Home, Settings
from workflows.client import cancel as cancel_workflow
from workflows.client import connect
from workflows.runtime import Runtime, running

deliveries = App(name="deliveries", help="List, show, watch, fetch and cancel deliveries.")

REFRESH_SECONDS = 0.5


def server_of(home: Home, settings: Settings) -> Runtime:
    """The server that runs this home's deliveries. Raises ServerFault when none does."""
    if settings.address:
        return Runtime(settings.address, settings.namespace)
    found = running(home)
    if found is None:
        raise ServerFault(f"nothing runs on {home.root}; start it with `delivery-plane up`")
    return found


@deliveries.command(name="list")
def list_(*, json: bool = False) -> int:
    """Every delivery on this home, oldest first.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    parts = existing_platform()
    found: list[dict[str, Any]] = []
    for delivery_id in parts.ledger.deliveries():
        record = parts.ledger.record(delivery_id)
        opened, closed = record.last(DeliveryOpened), record.last(DeliveryClosed)
        visit = record.last(StageOpened)
        statuses = latest(record)
        found.append(
            {
                "delivery_id": delivery_id,
                "scenario": opened.value.scenario if opened else None,
                "seat": opened.value.seat if opened else None,
                "outcome": closed.value.outcome if closed else None,
                "stage": visit.value.stage if visit else None,
                "stages_passed": sum(status == "passed" for status in statuses.values()),
                "wall_seconds": wall_seconds(record.entries),
            }
        )
    if json:
        print_json(found)
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("delivery", "scenario", "seat", "outcome", "stages passed", "wall s"):
        table.add_column(column)
    for row in found:
        state = row["outcome"] or f"open, at {row['stage']}"
        passed = f"{row['stages_passed']} of {len(STAGES)}"
        table.add_row(
            row["delivery_id"], row["scenario"], row["seat"], state, passed, f"{row['wall_seconds']:.0f}"
        )
    out.print(table)
    return 0


@deliveries.command
def show(delivery_id: str, /, *, json: bool = False) -> int:
    """One delivery: verdicts, acceptance, flags, meters, gates.

    Parameters
    ----------
    json
        Print the delivery's JSON object.
    """
    summary = report(existing_platform(), delivery_id)
    if json:
        print_json(summary)
    else:
        out.print(scorecard(summary))
    return 0


@deliveries.command
def watch(delivery_id: str, /) -> int:
    """Follow a delivery until it ends; the exit code is as of `deliver`."""
    parts = existing_platform()
    parts.ledger.record(delivery_id)
    follower = Follower(parts.ledger, delivery_id, progress)
    with follower.shown() as refresh:
        while (closed := refresh().last(DeliveryClosed)) is None:
            time.sleep(REFRESH_SECONDS)
    out.print(scorecard(report(parts, delivery_id)))
    return exit_code(Outcome(closed.value.outcome))


@deliveries.command
def fetch(delivery_id: str, folder: Path, /) -> int:
    """Copy an accepted delivery's model, card, invoice, acceptance and lineage record into FOLDER.

    FOLDER must not exist. The model loads from it with `from_pretrained`.
    """
    parts = existing_platform()
    record = parts.ledger.record(delivery_id)
    closed, artifact = record.last(DeliveryClosed), record.last(ArtifactRegistered)
    if closed is None:
        raise BadInput(f"{delivery_id} is still open; wait for it with `deliveries watch {delivery_id}`")
    if closed.value.outcome is not Outcome.ACCEPTED or artifact is None:
        raise BadInput(f"{delivery_id} ended {closed.value.outcome}: there is nothing to fetch")
    if folder.exists():
        raise BadInput(f"{folder} exists; name a folder that does not")
    card, meters, acceptance = record.claim(CardClaim), record.last(MetersRead), record.acceptance()
    assert card
    assert meters
    assert acceptance
    aside = folder.with_name(folder.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        shutil.copytree(parts.home.delivery(delivery_id) / "artifact", aside)
        (aside / "README.md").write_text(card.value.markdown)
        for name, value in {
            "invoice.json": meters.value.model_dump(mode="json"),
            "acceptance.json": acceptance.value.model_dump(mode="json"),
            "lineage.json": artifact.value.model_dump(mode="json"),
        }.items():
            (aside / name).write_text(json_module.dumps(value, indent=2) + "\n")
        aside.replace(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise BadInput(f"{folder}: cannot be written ({error.strerror}); choose another place") from None
    say(f"{folder}: model, card, invoice, acceptance and lineage of {delivery_id}")
    return 0


@deliveries.command
def cancel(delivery_id: str, /) -> int:
    """End a delivery. It closes as cancelled by an operator, which is nobody's failure."""
    settings, home = open_home()
    parts = existing_platform()
    if parts.ledger.record(delivery_id).last(DeliveryClosed):
        raise BadInput(f"{delivery_id} has ended already; `deliveries show {delivery_id}` says how")
    run = server_of(home, settings)

    async def send() -> None:
        await cancel_workflow(await connect(run.address, run.namespace), delivery_id)

    asyncio.run(send())
    say(f"{delivery_id}: cancelling; `deliveries watch {delivery_id}` follows it")
    return 0
