"""A delivery while it runs: one live table of its stages, the job's curves, the gate that waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from delivery_plane import meter
from delivery_plane.cli.shared import moment, say
from delivery_plane.cli.summary import COLOURS
from delivery_plane.delivery import STAGE_CLASS, STAGES
from delivery_plane.entry import Entry
from delivery_plane.errors import LedgerFault, one_line
from delivery_plane.facts import (
    DeliveryClosed,
    DeliveryOpened,
    FlagRaised,
    GateOpened,
    JobEnded,
    JobStarted,
    ProbeObserved,
    ScheduleQuoted,
    StageOpened,
)
from delivery_plane.gates import decided
from delivery_plane.ledger import Ledger
from delivery_plane.record import Record
from workflows.client import Waiting

LOOK_SECONDS = 2.0
LEDGER_AWAY_SECONDS = 300.0

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], low: float, high: float) -> str:
    """Values as bars between two bounds."""
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in values)


def table(delivery_id: str, record: Record) -> RenderableType:
    """The state of a delivery, as one renderable."""
    verdicts = {verdict.value.stage: verdict.value for verdict in record.verdicts()}
    visit = record.last(StageOpened)
    closed = record.last(DeliveryClosed)
    rows = Table(box=None, pad_edge=False, title=delivery_id, title_justify="left")
    for column in ("", "stage", "class", "status", "rules passed"):
        rows.add_column(column)
    for number, stage in enumerate(STAGES, start=1):
        verdict = verdicts.get(stage)
        attempt = max(
            (f.value.attempt for f in record.facts(StageOpened) if f.value.stage == stage), default=0
        )
        running = not closed and visit is not None and visit.value.stage == stage
        if verdict and not (running and attempt > verdict.attempt):
            status = Text(verdict.status.value, style=COLOURS[verdict.status])
            passed = sum(finding.status == "passed" for finding in verdict.findings)
            rules = f"{passed}/{len(verdict.findings)}"
        else:
            status = Text("running", style="cyan") if running else Text("·", style="dim")
            rules = ""
        name = stage.value if attempt < 2 else f"{stage.value} ({attempt})"
        rows.add_row(str(number), name, STAGE_CLASS[stage], status, rules)
    return Group(rows, *_curves(record), *_meters(record), *_gates(record), *_end(record))


def _curves(record: Record) -> list[Text]:
    job = record.last(JobStarted)
    if job is None:
        return []
    probes = [f.value for f in record.facts(ProbeObserved) if f.value.job_id == job.value.job_id]
    if not probes:
        return [Text(f"{job.value.job_id}: starting", style="dim")]
    losses = [probe.train_loss for probe in probes if probe.train_loss is not None]
    right = [probe.probe_correct / probe.probe_items for probe in probes]
    last = probes[-1]
    lines = [Text(f"{job.value.job_id}: step {last.step} of {job.value.steps}, {last.device_seconds:.0f} s")]
    if losses:
        lines.append(
            Text(f"  train loss  {sparkline(losses, 0.0, max(losses))}  {losses[0]:.2f} to {losses[-1]:.2f}")
        )
    lines.append(
        Text(f"  probe right {sparkline(right, 0.0, 1.0)}  {last.probe_correct} of {last.probe_items}"
             f" (base {last.base_correct})")
    )  # fmt: skip
    for flag in record.facts(FlagRaised):
        lines.append(Text(f"  flag: {flag.value.message}", style="bold red"))
    return lines


def _meters(record: Record) -> list[Text]:
    if record.last(DeliveryOpened) is None:
        return []
    used, budget = meter.used(record), meter.budget(record)
    usd, seconds = used.usd, used.gpu_seconds
    # A job is metered when it ends; until then its last probe and the quoted price say what it took so far.
    running = record.last(ProbeObserved)
    ended = {fact.value.job_id for fact in record.facts(JobEnded)}
    quoted = record.last(ScheduleQuoted)
    if running and running.value.job_id not in ended:
        seconds += running.value.device_seconds
        if quoted and quoted.value.offer and quoted.value.offer.gpu_seconds:
            usd += running.value.device_seconds * quoted.value.offer.usd / quoted.value.offer.gpu_seconds
    return [
        Text(
            f"used {usd:.4f} of {budget.usd:.2f} USD, {seconds:.0f} of {budget.gpu_seconds:.0f} device seconds",
            style="dim",
        )
    ]


def _gates(record: Record) -> list[Text]:
    if record.last(DeliveryClosed):
        return []
    lines = []
    for fact in record.facts(GateOpened):
        gate = fact.value
        if decided(record, gate.gate_id) is None:
            lines.append(
                Text(f"waits at the {gate.gate} gate until {moment(gate.deadline_at)}:", style="bold yellow")
            )
            lines.append(Text(f"  delivery-plane gates show {gate.gate_id}", style="yellow"))
            lines.append(
                Text(f"  delivery-plane gates approve {gate.gate_id} --as NAME --reason ...", style="yellow")
            )
    return lines


def _end(record: Record) -> list[Text]:
    closed = record.last(DeliveryClosed)
    return [Text(f"outcome: {closed.value.outcome}", style="bold")] if closed else []


class Follower:
    """Reads a delivery's new entries as they come, and renders them."""

    def __init__(self, ledger: Ledger, delivery_id: str, console: Console) -> None:
        self._ledger = ledger
        self._delivery_id = delivery_id
        self._console = console
        self._entries: list[Entry] = []
        self._said: set[str] = set()
        self._waiting: Waiting | None = None
        self._away_since: float | None = None

    def waits(self, waiting: Waiting | None) -> None:
        """Show what the delivery waits for besides people; None: nothing."""
        told, self._waiting = self._waiting, waiting
        if waiting and (told is None or told.why != waiting.why) and not self._console.is_terminal:
            say(f"{time.strftime('%H:%M:%S')} {self._delivery_id} {self._wait_line(waiting)}", self._console)

    def _wait_line(self, waiting: Waiting) -> str:
        visit = Record(self._entries).last(StageOpened)
        stage = f" of {visit.value.stage}" if visit and waiting.step in ("open_stage", "run_stage") else ""
        return f"waiting: {waiting.why} (step {waiting.step}{stage}, try {waiting.tries})"

    def record(self) -> Record:
        """Everything so far. A ledger that is away for a while is waited for; then its LedgerFault is raised."""
        try:
            self._entries += self._ledger.entries(self._delivery_id, after=len(self._entries))
        except LedgerFault as error:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since > LEDGER_AWAY_SECONDS:
                raise
            self.waits(Waiting("reading", 1, one_line(error, 300)))
        else:
            self._away_since = None
        return Record(self._entries)

    async def keep_looking(self, look: Callable[[], Awaitable[Waiting | None]]) -> None:
        """Show what the delivery waits for, by `look`, until cancelled."""
        while True:
            self.waits(await look())
            await asyncio.sleep(LOOK_SECONDS)

    @contextmanager
    def shown(self) -> Iterator[Callable[[], Record]]:
        """A live table on a terminal, else a line per event; call what it yields now and then."""
        if not self._console.is_terminal:
            yield self._say
            return
        with Live(console=self._console, auto_refresh=False) as live:

            def refresh() -> Record:
                record = self.record()
                shown: list[RenderableType] = [table(self._delivery_id, record)]
                if self._waiting:
                    shown.append(Text(self._wait_line(self._waiting), style="yellow"))
                live.update(Group(*shown), refresh=True)
                return record

            yield refresh

    def _say(self) -> Record:
        record = self.record()
        for entry in record.entries:
            line = _line(entry)
            if line and entry.idempotency_key not in self._said:
                self._said.add(entry.idempotency_key)
                say(f"{time.strftime('%H:%M:%S')} {self._delivery_id} {line}", self._console)
        return record


def _line(entry: Entry) -> str | None:
    """What a log says of an entry; None: nothing."""
    payload = entry.payload
    if entry.type == "verdict" and entry.kind == "stage":
        passed = sum(finding["status"] == "passed" for finding in payload["findings"])
        rules = f"{passed} of {len(payload['findings'])} rules passed"
        return f"{entry.stage} ({entry.attempt}): {payload['status']}, {rules}"
    if entry.kind == "probe_observed":
        loss = payload["train_loss"]
        return (
            f"step {payload['step']} ({payload['budget_fraction']:.0%}): train loss"
            f" {'not finite' if loss is None else f'{loss:.3f}'},"
            f" probe {payload['probe_correct']} of {payload['probe_items']} right"
        )
    return {
        "flag_raised": f"flag: {payload.get('message')}",
        "gate_opened": f"gate {payload.get('gate_id')} is open until {moment(payload.get('deadline_at', ''))}",
        "gate_decided": f"gate {payload.get('gate_id')}: {payload.get('decision')} by {payload.get('by')}",
        "acceptance": f"acceptance: {payload.get('decision')}",
        "delivery_faulted": f"platform fault: {payload.get('message')}",
        "delivery_closed": f"outcome: {payload.get('outcome')}",
    }.get(entry.kind)
