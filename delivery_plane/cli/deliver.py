"""`deliver` and `demo`: start deliveries, follow them, report."""

import asyncio
import re
import secrets
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import ValidationError

from delivery_plane.claims import problems
from delivery_plane.cli.live import Follower
from delivery_plane.cli.reports import check_writable, link_to, write_report
from delivery_plane.cli.shared import Whole, open_home, out, print_json, progress, say, usable
from delivery_plane.cli.summary import scorecard, summarise
from delivery_plane.compute.faults import check_fault, known_faults
from delivery_plane.delivery import ApproverMode, DeliverySpec, OnFlag, Outcome
from delivery_plane.errors import BadInput, ServerFault
from delivery_plane.facts import DeliveryFaulted, DeliveryOpened
from delivery_plane.identity import PLATFORM
from delivery_plane.settings import Home, Settings
from scenarios.catalog import check_data, load_scenario
from scenarios.seats.catalog import SEATS
from workflows.client import LOST_SECONDS, connect, outcome, start_delivery, waiting
from workflows.platform import Platform, open_platform
from workflows.runtime import Runtime, reconcile, runtime

REFRESH_SECONDS = 0.4

Fault = Annotated[
    str | None,
    Parameter(
        help="Plant a fault that the seat does not know of: its name, or FILE.py:Name for one of your own."
    ),
]
_LETTERS = re.compile("[^a-z0-9]+")


def order(
    scenario: str,
    seat: str,
    *,
    base: Path | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    seed: int = 0,
    fault: str | None = None,
    on_flag: OnFlag = OnFlag.STOP,
    approver: ApproverMode = ApproverMode.AUTO,
    delivery_id: str | None = None,
) -> DeliverySpec:
    """A checked order. Raises BadInput before anything is started or written."""
    loaded = load_scenario(scenario)
    if seat in known_faults() and fault is None:
        seat, fault = "reference", seat
    if seat not in SEATS:
        raise BadInput(f"no seat {seat!r}; there are: {', '.join([*SEATS, *known_faults()])}")
    fault = _located(fault)
    check_fault(fault)
    if base is not None and not usable(base / "config.json", "--base").is_file():
        raise BadInput(f"--base {base}: no model there (no config.json); give the folder of a causal LM")
    check_data(loaded)
    settings, _ = open_home()
    name = f"{loaded.name}-{_LETTERS.sub('-', (fault or seat).rpartition('/')[2].lower())}"[:50].rstrip("-")
    try:
        return DeliverySpec(
            delivery_id=delivery_id or f"{name}-{secrets.token_hex(3)}",
            scenario=scenario
            if Path(scenario).name == scenario and not Path(scenario).exists()
            else str(loaded.folder),
            seat=seat,
            base=str(base.absolute()) if base else None,
            device=device,
            seed=seed,
            fault=fault,
            on_flag=on_flag,
            approver=approver,
            deadlines=settings.deadlines,
        )
    except ValidationError as error:
        raise BadInput(f"order: {problems(error)}") from None


def _located(fault: str | None) -> str | None:
    """A fault of one's own by the absolute path of its file: those that run it work in other folders."""
    path, separator, kind = (fault or "").rpartition(":")
    if not separator or not path.endswith(".py"):
        return fault
    return f"{usable(Path(path), '--fault').absolute()}:{kind}"


def _opened(settings: Settings, home: Home) -> Platform:
    """The platform on a home; nothing is made before a server that was named has answered."""
    if settings.address:
        asyncio.run(connect(settings.address, settings.namespace))
    return open_platform(home)


async def _follow(platform: Platform, run: Runtime, spec: DeliverySpec) -> Outcome:
    client = await connect(run.address, run.namespace)
    await start_delivery(client, spec)
    follower = Follower(platform.ledger, spec.delivery_id, progress)
    # Our own server is brought back however long that takes; another's is not ours to wait for.
    patience = None if run.embedded else LOST_SECONDS
    ending = asyncio.create_task(outcome(client, spec.delivery_id, patience))
    looking = asyncio.create_task(follower.keep_looking(partial(waiting, client, spec.delivery_id)))
    with follower.shown() as refresh:
        while not ending.done():
            await asyncio.to_thread(refresh)
            for line in run.tend():
                say(line, progress)
            await asyncio.wait([ending], timeout=REFRESH_SECONDS)
        looking.cancel()
        await asyncio.to_thread(refresh)
    return (await ending).outcome


def report(platform: Platform, delivery_id: str) -> dict[str, Any]:
    """The delivery's summary, its ledger verified just now."""
    record = platform.ledger.record(delivery_id)
    if record.last(DeliveryOpened) is None:
        fault = record.last(DeliveryFaulted)
        raise ServerFault(
            f"{delivery_id} was not opened: {fault.value.message if fault else 'still starting'}"
        )
    public_key = platform.identities.get(PLATFORM).public_key
    return summarise(delivery_id, record, platform.ledger.verify(delivery_id, public_key))


def exit_code(ended: Outcome) -> int:
    """0 accepted, 4 platform fault, 1 everything else."""
    return {Outcome.ACCEPTED: 0, Outcome.PLATFORM_FAULT: 4}.get(ended, 1)


def deliver(
    scenario: str,
    /,
    *,
    seat: str = "reference",
    base: Path | None = None,
    plane: Literal["local"] = "local",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    seed: Whole = 0,
    fault: Fault = None,
    on_flag: OnFlag = OnFlag.STOP,
    approver: ApproverMode = ApproverMode.AUTO,
    id: str | None = None,  # noqa: A002 - the flag's name
    report_to: Annotated[Path | None, Parameter(name="--report")] = None,
    json: bool = False,
) -> int:
    """Run one delivery of SCENARIO (a catalogue name or a folder) and report its outcome.

    Exit code 0: accepted; 1: any other outcome; 4: platform fault.

    Parameters
    ----------
    seat
        Who sits in the seat: a scripted seat, or a fault's name for the reference with that fault.
    base
        Folder of any local causal LM to use in place of the scenario's base.
    plane
        Where compute happens.
    device
        Device of the local plane.
    seed
        Added to the seeds of training.
    on_flag
        What the seat does on a flag: stop, ask a person to continue, or have the detector only observe.
    approver
        auto: the scripted policy decides gates; ask: a person does with `gates`; none: nobody does.
    id
        The delivery's id; made up when left out.
    report_to
        HTML file to write the report to at the end, whatever the outcome.
    json
        Print the result as one JSON object.
    """
    del plane  # one plane in this release; the parser has checked the name
    spec = order(
        scenario, seat, base=base, device=device, seed=seed, fault=fault, on_flag=on_flag,
        approver=approver, delivery_id=id,
    )  # fmt: skip
    if report_to is not None:
        check_writable(report_to, "--report")
    settings, home = open_home()
    parts = _opened(settings, home)
    with runtime(home, settings) as run:
        if run.workers:
            reconcile(parts, run)
        say(f"{spec.delivery_id}: Temporal at {run.address}, state in {home.root}", progress)
        try:
            ended = asyncio.run(_follow(parts, run, spec))
        except KeyboardInterrupt:
            say(f"{spec.delivery_id} stays open; it goes on with `delivery-plane up`", progress)
            raise
    summary = report(parts, spec.delivery_id)
    if json:
        print_json(summary)
    else:
        out.print(scorecard(summary))
    if report_to is not None:
        write_report(parts, spec.delivery_id, report_to)
        say(link_to(report_to), progress if json else out)
    return exit_code(ended)


def demo(*, json: bool = False) -> int:
    """Two deliveries of `support-intents` by the reference seat: one as it should be, one with its labels
    shuffled by a planted fault. The first must be accepted, the second stopped by the detector.

    Parameters
    ----------
    json
        Print both results as one JSON object.
    """
    settings, home = open_home()
    parts = _opened(settings, home)
    orders = [
        order("support-intents", "reference"),
        order("support-intents", "reference", fault="label-shuffle"),
    ]
    with runtime(home, settings) as run:
        say(f"Temporal at {run.address}, state in {home.root}", progress)
        for spec in orders:
            asyncio.run(_follow(parts, run, spec))
    summaries = [report(parts, spec.delivery_id) for spec in orders]
    good = [summary["outcome"] for summary in summaries] == [Outcome.ACCEPTED, Outcome.STOPPED_ON_FLAG]
    verified = all(summary["ledger"]["verified"] for summary in summaries)
    pages = [home.delivery(spec.delivery_id) / "report.html" for spec in orders]
    for spec, page in zip(orders, pages, strict=True):
        page.parent.mkdir(parents=True, exist_ok=True)
        write_report(parts, spec.delivery_id, page)
    if json:
        print_json({"deliveries": summaries, "ledger_verified": verified, "as_expected": good})
    else:
        for summary in summaries:
            out.print(scorecard(summary))
        say(
            "Ledger verified: every entry is chained and the signed heads match."
            if verified
            else "LEDGER NOT VERIFIED: run `delivery-plane ledger verify`."
        )
        for page in pages:
            say(link_to(page))
        say("Next: delivery-plane deliveries list; delivery-plane ledger export ID --out FILE.jsonl")
    return 0 if good and verified else 1
