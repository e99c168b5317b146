"""`make faults-spine`: deliveries under fire until every cell of (place, target) is full; goals, figures, evidence.

Every line it learns goes to the JSONL file at once, and a later run continues from there. `--fresh` starts anew.
"""

import argparse
import contextlib
import json
import platform
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import toy
from commands import Plane
from kill_harness import PLACES, Place, Reference, Shot, Target, disturbed, moment, undisturbed
from postgres import Postgres, binaries, postgres

from workflows.messages import HEARTBEAT_TIMEOUT_SECONDS

EVIDENCE = Path(__file__).parent.parent / "docs" / "evidence"
KILLS = {"sqlite": 120, "postgresql": 30}
TARGETS: dict[str, tuple[Target, ...]] = {
    "sqlite": ("worker", "trainer", "server"),
    "postgresql": ("worker", "trainer", "server", "database"),
}
PER_CELL = 4
"""Kills wanted of every target in each of the ten stages, on SQLite."""
DATABASE_KILLS = 5
RECOVERY_SECONDS = HEARTBEAT_TIMEOUT_SECONDS + 5
MOST_DELIVERIES = 40
"""More would say that kills do not land where they are wanted."""


class Book:
    """The JSONL file: what is done, what is wanted next. Safe from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.lines: list[dict[str, Any]] = []
        if path.exists():
            self.lines = [json.loads(line) for line in path.read_text().splitlines()]
        self._asked: Counter[tuple[str, Place, Target]] = Counter()

    def add(self, *lines: dict[str, Any]) -> None:
        with self._lock, self._path.open("a") as file:
            for line in lines:
                self.lines.append(line)
                file.write(json.dumps(line) + "\n")

    def of(self, kind: str, database: str | None = None) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == kind and database in (None, line["database"])]

    def cells(self, database: str) -> Counter[tuple[Place, Target]]:
        return Counter((kill["stage"], kill["target"]) for kill in self.of("kill", database))

    def next_target(self, database: str, place: Place) -> Target:
        """The target with the fewest kills in this place, those under way included; ties by a Latin square."""
        targets = TARGETS[database]
        with self._lock:
            done = self.cells(database)
            order = sorted(
                targets,
                key=lambda target: (
                    max(done[place, target], self._asked[database, place, target]),
                    (targets.index(target) + PLACES.index(place)) % len(targets),
                ),
            )
            if order[0] != "database" and "database" in targets and _databases(done) < DATABASE_KILLS:
                order.insert(0, "database") if PLACES.index(place) % 3 == 1 else None
            self._asked[database, place, order[0]] += 1
            return order[0]

    def full(self, database: str) -> bool:
        done = self.cells(database)
        enough = done.total() >= KILLS[database]
        if database == "postgresql":
            return enough and _databases(done) >= DATABASE_KILLS
        return enough and _least(done) >= PER_CELL


def _databases(done: Counter[tuple[Place, Target]]) -> int:
    return sum(count for (_, target), count in done.items() if target == "database")


def _least(done: Counter[tuple[Place, Target]]) -> int:
    return min(done[place, target] for place in PLACES[:-1] for target in TARGETS["sqlite"])


def figures(book: Book, wall_seconds: float) -> dict[str, Any]:
    """What is claimed, and whether every goal is met."""
    kills, deliveries = book.of("kill"), book.of("delivery")
    at_work = sorted(kill["at_work_seconds"] for kill in kills)
    entries = sorted(kill["next_entry_seconds"] for kill in kills if kill["next_entry_seconds"] is not None)
    database = [kill for kill in kills if kill["target"] == "database"]
    found: dict[str, Any] = {
        "kills": len(kills),
        "kills_sqlite": len(book.of("kill", "sqlite")),
        "kills_postgresql": len(book.of("kill", "postgresql")),
        "kills_of_the_database": len(database),
        "deliveries": len(deliveries),
        "least_per_cell": _least(book.cells("sqlite")),
        "lost": sum(line["lost"] for line in deliveries),
        "doubled": sum(line["doubled"] for line in deliveries),
        "wrong_verdicts": sum(line["wrong_verdicts"] for line in deliveries),
        "otherwise_wrong": sum(bool(line["wrong"]) for line in deliveries),
        "recovery_p50_seconds": _share(at_work, 50),
        "recovery_p95_seconds": _share(at_work, 95),
        "next_entry_p50_seconds": _share(entries, 50),
        "next_entry_p95_seconds": _share(entries, 95),
        "recovery_goal_seconds": RECOVERY_SECONDS,
        "wall_seconds": round(wall_seconds),
    }
    found["met"] = bool(
        all(book.full(name) for name in KILLS)
        and not any(found[name] for name in ("lost", "doubled", "wrong_verdicts", "otherwise_wrong"))
        and at_work
        and found["recovery_p95_seconds"] <= RECOVERY_SECONDS
    )
    return found


def _share(ordered: list[float], percent: int) -> float | None:
    """The nearest-rank percentile."""
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


def write_up(book: Book, found: dict[str, Any], path: Path) -> None:
    """The page of evidence."""
    rows = []
    for place in PLACES:
        cells = []
        for target in ("worker", "trainer", "server", "database"):
            waits = [
                kill["at_work_seconds"]
                for kill in book.of("kill")
                if (kill["stage"], kill["target"]) == (place, target)
            ]
            cells.append(f"{len(waits)} ({statistics.median(waits):.1f} s)" if waits else "0")
        rows.append(f"| {place} | {' | '.join(cells)} |")
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    page = f"""# Faults survived

`make faults-spine` kills with SIGKILL, at random moments of every stage of real deliveries (the toy scenario of the
tests: real server, workers and training): the **worker** that serves the stage, the **trainer** (the compute child at
work, or where a stage has none the fork server or the overlap search), the Temporal **server**, and on PostgreSQL the
**database** with all its processes.

Afterwards each delivery must equal an undisturbed one: outcome, every verdict and finding, every entry by its
idempotency key, tokens metered, steps probed. Entries are read all the time from beside the platform: each one seen
must be there at the end with the same hash. A trainer's start is the one entry that a kill may add, once per run,
under a newer fence; it must name the last checkpoint on record. The ledger must verify, and its export must be judged
again the same.

    {json.dumps(found)}

Kills per cell, and the median time until the delivery is at work again: a step has begun anew, or an entry has come.
The next new entry comes later by what had to be done again, and by the ten seconds of a core that a new compute worker
needs to load the training libraries. `accept` is all that follows the last stage's verdict.

| place | worker | trainer | server | database |
|---|---|---|---|---|
{chr(10).join(rows)}

Heartbeat timeout {HEARTBEAT_TIMEOUT_SECONDS:.0f} s. Machine: {machine}. Every kill is a line of
[faults-spine.jsonl](faults-spine.jsonl).
"""
    path.write_text(page)


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


class Spine:
    """One session of runs."""

    def __init__(self, book: Book, folder: Path, seed: int, deadline: float) -> None:
        self._book = book
        self._folder = folder
        self._seed = seed
        self._deadline = deadline
        self._scenario = str(toy.shared(folder))

    def wind_up(self) -> None:
        """Begin no more deliveries."""
        say("ending after the deliveries under way; run again to go on")
        self._deadline = 0.0

    def reference(self) -> Reference:
        """The undisturbed delivery, from the book or run now."""
        for line in self._book.of("undisturbed"):
            return Reference(**line["reference"])
        plane = Plane(self._folder / "undisturbed")
        with plane.up():
            found = undisturbed(plane, self._scenario)
        self._book.add({"type": "undisturbed", "database": "sqlite", "reference": asdict(found)})
        return found

    def run(self, database: str, number: int, reference: Reference, server: Postgres | None) -> None:
        """One disturbed delivery, booked as a whole once it is judged."""
        name = f"fire-{database}-{number}"
        draw = random.Random(f"{self._seed}-{name}")
        settings = {"DELIVERY_PLANE_DATABASE": server.database()} if server else {}

        def shot(place: Place) -> Shot:
            return Shot(place, self._book.next_target(database, place), moment(draw, reference, place))

        home = self._folder / name
        plane = Plane(home, settings)
        with plane.up():
            report = disturbed(plane, self._scenario, name, reference, shot, database=server, told=say)
        kills = [{"type": "kill", "database": database, **kill} for kill in report.kills]
        rest = {key: value for key, value in asdict(report).items() if key != "kills"}
        self._book.add(*kills, {"type": "delivery", "database": database, "run": name, **rest})
        done = self._book.cells(database)
        say(
            f"{name}: {report.outcome}, {report.wrong or 'as undisturbed'}; {done.total()} kills on {database}"
        )
        if not report.wrong:
            shutil.rmtree(home)

    def fill(self, database: str, at_once: int, reference: Reference) -> None:
        """Deliveries, several at a time, until the cells are full or the time is up."""

        def work(server: Postgres | None) -> None:
            while not self._book.full(database) and time.monotonic() < self._deadline:
                with numbers:
                    number = next(count)
                if number > MOST_DELIVERIES:
                    return
                self.run(database, number, reference, server)

        numbers, count = threading.Lock(), iter(range(len(self._book.of("delivery", database)) + 1, 10_000))
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(at_once) as pool:
            # A database server each: killing one must not disturb the neighbour.
            servers = [
                stack.enter_context(postgres(durable=True)) if database == "postgresql" else None
                for _ in range(at_once)
            ]
            for ended in [pool.submit(work, server) for server in servers]:
                ended.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    parser.add_argument("--minutes", type=float, default=240, help="begin no delivery after this long")
    parser.add_argument("--at-once", type=int, default=2, help="deliveries at a time")
    parser.add_argument("--database", choices=[*KILLS], action="append", help="only this one")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    lines = EVIDENCE / "faults-spine.jsonl"
    if given.fresh:
        lines.unlink(missing_ok=True)
    book, began = Book(lines), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    wanted = [name for name in given.database or KILLS if not book.full(name)]
    if "postgresql" in wanted and binaries() is None:
        say("PostgreSQL is not installed here: its part is left out")
        wanted.remove("postgresql")
    if wanted:
        spine = Spine(book, folder, given.seed, began + given.minutes * 60)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: spine.wind_up())
        reference = spine.reference()
        for database in wanted:
            spine.fill(database, given.at_once, reference)
        book.add({"type": "session", "database": "", "seconds": round(time.monotonic() - began)})
    found = figures(book, sum(line["seconds"] for line in book.of("session")))
    write_up(book, found, EVIDENCE / "faults-spine.md")
    print(json.dumps(found))
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
