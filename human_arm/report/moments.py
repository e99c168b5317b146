"""When things happened in a delivery: its stage visits and gates on a clock that stands still at gates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from delivery_plane.delivery import STAGES
from delivery_plane.entry import Entry
from delivery_plane.facts import AcceptanceUnmeasured, DeliveryClosed, GateDecided, GateOpened, StageOpened
from delivery_plane.record import Record
from human_arm.report.text import words


@dataclass(frozen=True)
class Span:
    """Something that took time. `start` and `end` are seconds on the clock of work; None: it never began."""

    label: str
    kind: Literal["stage", "gate", "test"]
    status: str
    begun_at: str | None = None
    start: float | None = None
    end: float | None = None
    seconds: float | None = None
    """Of real time, waits included; None for a gate that still waits."""
    entries: tuple[int, ...] = ()


def moment(entry: Entry) -> datetime:
    """When an entry was recorded."""
    return datetime.fromisoformat(entry.recorded_at)


class Clock:
    """Seconds of work since the first entry: the time in which no gate waited for a person."""

    def __init__(self, record: Record) -> None:
        entries = {entry.number: entry for entry in record.entries}
        decided = {fact.value.gate_id: moment(entries[fact.entry]) for fact in record.facts(GateDecided)}
        self._first = moment(record.entries[0])
        self.last = moment(record.entries[-1])
        self._waits = [
            (moment(entries[fact.entry]), decided.get(fact.value.gate_id, self.last))
            for fact in record.facts(GateOpened)
        ]

    def at(self, when: datetime) -> float:
        """Where a moment lies on this clock."""
        waited = sum(
            max(0.0, (min(end, when) - start).total_seconds()) for start, end in self._waits if start < when
        )
        return max(0.0, (when - self._first).total_seconds() - waited)

    def span(
        self, label: str, kind: Literal["stage", "gate", "test"], status: str, start: Entry, end: Entry | None
    ) -> Span:
        """From one entry to another, or to the end of the record."""
        stop = moment(end) if end else self.last
        return Span(
            label=label,
            kind=kind,
            status=status,
            begun_at=start.recorded_at,
            start=self.at(moment(start)),
            end=self.at(stop),
            seconds=None if kind == "gate" and end is None else (stop - moment(start)).total_seconds(),
            entries=(start.number, *([end.number] if end else [])),
        )


def spans(record: Record) -> list[Span]:
    """Every stage visit, gate and the sealed test in the order they began, then the stages not reached."""
    clock = Clock(record)
    found = [*_visits(record, clock), *_gates(record, clock), *_sealed_test(record, clock)]
    found.sort(key=lambda span: span.entries[0])
    reached = {fact.value.stage for fact in record.facts(StageOpened)}
    found += [Span(stage.value, "stage", "not reached") for stage in STAGES if stage not in reached]
    return _told_apart(found)


def _visits(record: Record, clock: Clock) -> Iterator[Span]:
    entries = {entry.number: entry for entry in record.entries}
    verdicts = {(cited.value.stage, cited.value.attempt): cited for cited in record.verdicts()}
    closed = record.last(DeliveryClosed)
    for fact in record.facts(StageOpened):
        stage, attempt = fact.value.stage, fact.value.attempt
        verdict = verdicts.get((stage, attempt))
        label = stage.value if attempt < 2 else f"{stage} ({attempt})"
        ended = entries[verdict.entry] if verdict else entries[closed.entry] if closed else None
        unjudged = "no verdict" if closed else "running"
        status = words(verdict.value.status) if verdict else unjudged
        yield clock.span(label, "stage", status, entries[fact.entry], ended)


def _gates(record: Record, clock: Clock) -> Iterator[Span]:
    entries = {entry.number: entry for entry in record.entries}
    decided = {fact.value.gate_id: fact for fact in record.facts(GateDecided)}
    for fact in record.facts(GateOpened):
        decision = decided.get(fact.value.gate_id)
        status = decision.value.decision.value if decision else "waiting"
        ended = entries[decision.entry] if decision else None
        yield clock.span(f"{fact.value.gate} gate", "gate", status, entries[fact.entry], ended)


def _sealed_test(record: Record, clock: Clock) -> Iterator[Span]:
    """From the last verdict before it: that it began then is the order of a delivery."""
    entries = {entry.number: entry for entry in record.entries}
    test, unmeasured = record.acceptance(), record.last(AcceptanceUnmeasured)
    end = test.entry if test else unmeasured.entry if unmeasured else None
    if end is None:
        return
    before = [cited.entry for cited in record.verdicts() if cited.entry < end]
    if before:
        status = words(test.value.decision) if test else "unscored"
        yield clock.span("sealed test", "test", status, entries[before[-1]], entries[end])


def _told_apart(found: Sequence[Span]) -> list[Span]:
    """The same spans; a label that comes again is numbered, since a picture has a row per label."""
    seen: dict[str, int] = {}
    numbered = []
    for span in found:
        seen[span.label] = count = seen.get(span.label, 0) + 1
        label = span.label if count == 1 else f"{span.label} ({count})"
        numbered.append(Span(**{**vars(span), "label": label}))
    return numbered
