"""`deliveries`: list, show, report, watch, fetch, cancel; what an operator does besides is in `upkeep.py`."""

import asyncio
import json as json_module
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.table import Table

from delivery_plane.claims import CardClaim
from delivery_plane.cli.deliver import exit_code, report
from delivery_plane.cli.live import Follower
from delivery_plane.cli.reports import check_writable, link_to, write_report, write_report_of_export
from delivery_plane.cli.shared import existing_platform, open_home, out, print_json, progress, say, usable
from delivery_plane.cli.summary import latest, scorecard, wall_seconds
from delivery_plane.delivery import STAGES, Outcome
from delivery_plane.errors import BadInput, ServerAway
from delivery_plane.facts import (
    ArtifactRegistered,
    DeliveryClosed,
    DeliveryOpened,
    DeliveryPurged,
    MetersRead,
    StageOpened,
)
from delivery_plane.record import Cited
from delivery_plane.settings import Home, Settings
from workflows.client import Waiting, connect
from workflows.client import cancel as cancel_workflow
from workflows.runtime import Runtime, running, waits_for

deliveries = App(name="deliveries", help="List, show, report, watch, fetch, cancel and purge deliveries.")

for _name, _help in {
    "disk": "What each delivery takes on disk.",
    "gc": "Remove what nobody needs any more.",
    "purge": "Erase a closed delivery's files and its customer's rows.",
}.items():
    deliveries.command(f"delivery_plane.cli.upkeep:{_name}", name=_name, help=_help)

REFRESH_SECONDS = 0.5


def server_of(home: Home, settings: Settings) -> Runtime:
    """The server that runs this home's deliveries. Raises ServerAway when none does."""
    if settings.address:
        return Runtime(settings.address, settings.namespace)
    found = running(home)
    if found is None:
        raise ServerAway(f"nothing runs on {home.root}; start it with `delivery-plane up`")
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


@deliveries.command(name="report")
def report_(
    source: str,
    /,
    *,
    to: Annotated[Path, Parameter(name="--out", help="HTML file to write.")],
    checkpoint: Path | None = None,
    key: Path | None = None,
) -> int:
    """Write the report of a delivery on this home, or of an export file, as one HTML file.

    It loads and runs nothing. It holds operator-only facts: do not hand it to whoever holds the seat.
    Exit code 1 when the record does not verify; the report is written all the same, and says so.

    Parameters
    ----------
    checkpoint
        Of an export: the signed checkpoints; the export with the ending .checkpoint when left out.
    key
        Of an export: file with the platform's public key, from somewhere you trust; .pub when left out.
    """
    check_writable(to, "--out")
    export = Path(source)
    if export.suffix == ".jsonl" or usable(export, "export").is_file():
        holds = write_report_of_export(export, checkpoint, key, to)
    elif checkpoint or key:
        raise BadInput(
            f"{source}: no such export; --checkpoint and --key go with an export's JSON-lines file"
        )
    else:
        holds = write_report(existing_platform(), source, to)
    say(link_to(to) + ("" if holds else " (NOT VERIFIED)"))
    return 0 if holds else 1


@deliveries.command
def watch(delivery_id: str, /) -> int:
    """Follow a delivery until it ends; the exit code is as of `deliver`."""
    settings, home = open_home()
    parts = existing_platform()
    parts.ledger.record(delivery_id)
    follower = Follower(parts.ledger, delivery_id, progress)
    closed = asyncio.run(_until_closed(follower, partial(waits_for, home, settings, delivery_id)))
    out.print(scorecard(report(parts, delivery_id)))
    return exit_code(Outcome(closed.value.outcome))


async def _until_closed(
    follower: Follower, look: Callable[[], Awaitable[Waiting | None]]
) -> Cited[DeliveryClosed]:
    looking = asyncio.create_task(follower.keep_looking(look))
    with follower.shown() as refresh:
        while (closed := (await asyncio.to_thread(refresh)).last(DeliveryClosed)) is None:
            await asyncio.sleep(REFRESH_SECONDS)
    looking.cancel()
    return closed


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
    if record.last(DeliveryPurged):
        raise BadInput(f"{delivery_id} was purged: its model is erased, only its record is left")
    if usable(folder, "folder").exists():
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
