"""Real ledgers under a temporary home, with a delivery that has just opened."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import psycopg
import records

from delivery_plane.claims import TrainClaim
from delivery_plane.delivery import Amounts, StageName
from delivery_plane.entry import Entry
from delivery_plane.facts import EvaluationRequested, FaultPlanted, StageOpened
from delivery_plane.identity import PLATFORM, Identity
from delivery_plane.ledger import Ledger
from delivery_plane.seat.seat import Seat
from delivery_plane.settings import Home
from workflows.platform import Platform, open_platform

T = TypeVar("T")

DELIVERY = "delivery-1"
BRIEF = "Route our messages."


NEW_DATABASE: list[Callable[[], str]] = []
"""Where `new_platform` gets a database from; the `database` fixture fills it. Empty: SQLite."""


def new_platform(folder: Path) -> Platform:
    """Ledger, identities and gates on a home of their own, the ledger on a database of its own."""
    return open_platform(Home(folder / "home", NEW_DATABASE[-1]() if NEW_DATABASE else None))


def note(number: int | str) -> EvaluationRequested:
    """A small fact; its key differs with its number."""
    return EvaluationRequested(request_id=f"note-{number}", candidate="base")


def open_delivery(
    parts: Platform,
    *,
    delivery_id: str = DELIVERY,
    seat: str = "seat-test",
    budget: Amounts = records.BUDGET,
    fault: str | None = None,
) -> Identity:
    """Record a delivery's opening; returns the identity that holds its seat."""
    holder = parts.identities.get_or_new(seat, "seat")
    opened = records.opened().model_copy(update={"seat_public_key": holder.public_key, "budget": budget})
    with parts.ledger.writing(delivery_id) as writer:
        writer.fact(opened)
        writer.fact(records.truth())
        if fault:
            writer.fact(FaultPlanted(fault=fault))
    return holder


def open_stage(parts: Platform, stage: StageName, attempt: int = 1, delivery_id: str = DELIVERY) -> None:
    """Open one stage visit for its claim."""
    fact = StageOpened(stage=stage, attempt=attempt)
    parts.ledger.fact(delivery_id, fact, stage=stage, attempt=attempt)


def seat_of(parts: Platform, holder: Identity, wakes: list[int] | None = None) -> Seat:
    """The holder's door to the delivery; every wake is counted in `wakes`."""
    return Seat(parts.ledger, DELIVERY, holder, BRIEF, lambda: wakes.append(1) if wakes is not None else None)


def replay(parts: Platform, entries: Iterable[Entry], holder: Identity) -> None:
    """Write recorded entries into a real ledger, the seat's key replaced by the holder's."""
    with parts.ledger.writing(DELIVERY) as writer:
        for entry in entries:
            place: dict[str, Any] = {"stage": entry.stage, "attempt": entry.attempt}
            if entry.type == "claim":
                writer.claim(entry.claim(), key=entry.idempotency_key, actor=entry.actor, **place)
            elif entry.type == "verdict":
                record = records.Record([entry])
                verdict = record.verdicts()[0] if entry.kind == "stage" else record.acceptance()
                assert verdict
                kind: Any = entry.kind
                writer.verdict(kind, verdict.value, **place)
            else:
                fact: Any = entry.fact()
                if entry.kind == "delivery_opened":
                    fact = fact.model_copy(update={"seat_public_key": holder.public_key})
                writer.fact(fact, key=entry.idempotency_key, **place)


REFUSED = (sqlite3.IntegrityError, psycopg.errors.RaiseException)
"""What a database says to whoever changes an entry."""


def raw(parts: Platform) -> Any:
    """The database as anybody who can reach it sees it: a connection that commits by itself."""
    place = parts.home.ledger
    if isinstance(place, Path):
        return sqlite3.connect(place, isolation_level=None)
    return psycopg.connect(place, autocommit=True)


def unlocked(parts: Platform) -> Any:
    """The database in the hands of somebody who removed its triggers."""
    connection = raw(parts)
    if isinstance(parts.home.ledger, str):
        connection.execute("ALTER TABLE entry DISABLE TRIGGER USER")
        return connection
    triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    return connection


def platform_key(parts: Platform) -> str:
    """The public key that signs the ledger's heads."""
    return parts.identities.get(PLATFORM).public_key


def reopened(parts: Platform) -> Ledger:
    """The same database through connections of its own, as another process opens it."""
    return Ledger(parts.home.ledger, parts.home.heads, parts.identities.get("platform").key)


def whole(ledger: Ledger, public_key: str, delivery_id: str = DELIVERY) -> list[str]:
    """Sign and verify a record; returns its keys in order."""
    entries = ledger.entries(delivery_id)
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    ledger.checkpoint(delivery_id)
    result = ledger.verify(delivery_id, public_key)
    assert result.verified, result.why
    assert result.entries == len(entries)
    return [entry.idempotency_key for entry in entries]


def at_once(count: int, work: Any) -> list[Any]:
    """`work(n)` for n in 0..count-1, all let go at the same moment; results or the exceptions raised."""
    barrier = Barrier(count)

    def one(number: int) -> Any:
        barrier.wait()
        try:
            return work(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def one_of(found: Sequence[T]) -> T:
    """The only element."""
    assert len(found) == 1, found
    return found[0]


def visible(seat: Seat) -> str:
    """Everything a seat can read of its delivery, as one text."""
    entries = [entry.model_dump(mode="json") for entry in seat.record().entries]
    return json.dumps([entries, seat.brief().model_dump(mode="json")])


START = TrainClaim(action="start", reason="as planned")
