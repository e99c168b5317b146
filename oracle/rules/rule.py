"""What a rule is, how it reads a record, and how a finding comes of it. No rule is written here."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from delivery_plane.delivery import StageName
from delivery_plane.facts import FactBase, MeasurementFailed
from delivery_plane.record import Cited, Record
from delivery_plane.verdicts import Finding


@dataclass(frozen=True)
class Visit:
    """One visit of one stage."""

    stage: StageName
    attempt: int


@dataclass(frozen=True)
class Reading:
    """What a rule read: whether it holds, in numbers, and the entries that say so."""

    status: Literal["passed", "failed"]
    message: str
    entries: tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """One question a stage's verdict rests on."""

    name: str
    """`<stage>.<what must hold>`."""
    stage: StageName
    blocking: bool
    """True: failing it ends the delivery as a violation. False: it is scored and the delivery goes on."""
    asks: str
    flips: str
    """What change of facts turns a pass into a failure."""
    read: Callable[[Record, Visit], Reading]
    since: str = "0.1.0"
    """The release that brought it. A delivery is judged by the rules of the release it was opened under."""


class Absent(Exception):
    """A rule cannot read what it needs: its finding is `unscored`, whatever the rule.

    `of_visit`: the missing fact is one the platform measures in this very visit, so a `MeasurementFailed`
    explains it; `subject` narrows that to failures about one candidate.
    """

    def __init__(self, what: str, *, of_visit: bool = False, subject: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.of_visit = of_visit
        self.subject = subject


F = TypeVar("F", bound=FactBase)
C = TypeVar("C")


class _HasEntry(Protocol):
    @property
    def entry(self) -> int: ...


def measured(record: Record, visit: Visit, kind: type[F]) -> Cited[F]:
    """The visit's own latest fact of one kind. Raises Absent."""
    found = record.last(kind, visit.stage, visit.attempt)
    if found is None:
        raise Absent(f"no {name_of(kind)} fact in {visit.stage} attempt {visit.attempt}", of_visit=True)
    return found


def known(record: Record, kind: type[F]) -> Cited[F]:
    """The delivery's latest fact of one kind, of whatever stage. Raises Absent."""
    found = record.last(kind)
    if found is None:
        raise Absent(f"no {name_of(kind)} fact in this delivery")
    return found


def claimed(record: Record, visit: Visit, kind: type[C]) -> Cited[C]:
    """The visit's own claim. Raises Absent."""
    found = record.claim(kind, visit.attempt)
    if found is None:
        raise Absent(f"no claim in {visit.stage} attempt {visit.attempt}")
    return found


def in_force(record: Record, kind: type[C]) -> Cited[C]:
    """The latest claim of another stage. Raises Absent."""
    found = record.claim(kind)
    if found is None:
        raise Absent(f"no {kind.__name__} in this delivery")
    return found


def name_of(kind: type[FactBase]) -> str:
    """A fact kind's name as recorded."""
    return str(kind.model_fields["kind"].default)


def passed_if(holds: bool, message: str, *cited: _HasEntry) -> Reading:
    """A reading that passes exactly if `holds`, citing each entry once, in order."""
    entries = tuple(sorted({item.entry for item in cited}))
    return Reading("passed" if holds else "failed", message, entries)


def examine(rule: Rule, record: Record, visit: Visit) -> Finding:
    """The finding of one rule on one visit."""
    try:
        reading = rule.read(record, visit)
    except Absent as absent:
        return _without_facts(rule, record, visit, absent)
    return _finding(rule, reading.status, reading.message, reading.entries)


def _without_facts(rule: Rule, record: Record, visit: Visit, absent: Absent) -> Finding:
    """The base is the control: where it could be measured and the candidate could not, the candidate failed.

    A violation has to be read from facts and is never inferred, so a blocking rule stays unscored.
    """
    failures = [
        failure
        for failure in record.facts(MeasurementFailed, visit.stage, visit.attempt)
        if absent.of_visit and absent.subject in (None, failure.value.subject)
    ]
    if not failures:
        return _finding(rule, "unscored", absent.what, ())
    last = failures[-1]
    fact = last.value
    base = "the base works" if fact.control == "base_works" else "the base fails too"
    message = (
        f"{fact.what} of {fact.subject} could not be measured in {fact.tries} tries; {base}: {fact.error}"
    )
    at_fault = fact.control == "base_works" and not rule.blocking
    return _finding(rule, "failed" if at_fault else "unscored", message, (last.entry,))


def _finding(
    rule: Rule, status: Literal["passed", "failed", "unscored"], message: str, entries: tuple[int, ...]
) -> Finding:
    return Finding(rule=rule.name, blocking=rule.blocking, status=status, message=message, entries=entries)


def listed(items: Iterable[object]) -> str:
    """Items in one line of a message; `none` when there are none."""
    return ", ".join(str(item) for item in items) or "none"
