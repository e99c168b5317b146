"""Deliveries under fire: real `up`, real deliveries, SIGKILL at chosen moments, and what must hold afterwards.

It kills and compares; which kills are wanted and how many is `faults_spine.py`'s and the tests' business.
"""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg
from commands import Plane, until

from delivery_plane.delivery import STAGES
from workflows.messages import COMPUTE_STAGES

Place = str
"""A stage's name, or `accept` for all that follows the last verdict of a stage."""
Target = Literal["worker", "trainer", "server", "database"]
Entry = dict[str, Any]

PLACES: tuple[Place, ...] = (*(stage.value for stage in STAGES), "accept")
LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 300.0
COMPUTE_PLACES = frozenset({*(stage.value for stage in COMPUTE_STAGES), "accept"})


class Observer(threading.Thread):
    """Reads a delivery's entries all the time, beside the platform, and remembers each as it first saw it."""

    def __init__(self, plane: Plane, delivery_id: str) -> None:
        super().__init__(daemon=True)
        self.entries: list[Entry] = []
        self.seen_at: list[float] = []
        self.runs = 0
        """Runs of steps begun so far: each takes a fencing token."""
        self.looks = 0
        self.changed: list[str] = []
        """What contradicts an earlier look. Must stay empty."""
        self._place = plane.settings.get("DELIVERY_PLANE_DATABASE") or plane.home / "ledger.sqlite"
        self._delivery_id = delivery_id
        self._done = threading.Event()
        self._news = threading.Condition()

    def place(self) -> Place:
        """Where the delivery is, by the verdicts on record."""
        visits = sum(entry["type"] == "verdict" and entry["kind"] == "stage" for entry in self.entries)
        return PLACES[min(visits, len(PLACES) - 1)]

    def closed(self) -> bool:
        return bool(self.entries) and self.entries[-1]["kind"] == "delivery_closed"

    def wait(self, ready: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait until `ready`, looking whenever entries come. Whether it came true."""
        with self._news:
            return self._news.wait_for(ready, seconds)

    def stop(self) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        while not self._done.is_set():
            # The database may be killed under us, or not be there yet.
            with contextlib.suppress(sqlite3.Error, psycopg.Error), self._reader() as read:
                while not self._done.is_set():
                    self._take(*read(len(self.entries)))
                    time.sleep(LOOK_SECONDS)
            time.sleep(0.05)

    def _take(self, rows: list[tuple[Any, ...]], runs: int) -> None:
        now, before = time.monotonic(), self.runs
        self.runs = max(runs, before)
        for number, hash_, type_, kind, stage, attempt, key, payload in rows:
            if number != len(self.entries) + 1:
                self.changed.append(f"entry {number} came after {len(self.entries)}")
            self.entries.append(
                {
                    "number": number, "hash": hash_, "type": type_, "kind": kind, "stage": stage,
                    "attempt": attempt, "idempotency_key": key, "payload": json.loads(payload),
                }
            )  # fmt: skip
            self.seen_at.append(now)
        self.looks += 1
        if rows or self.runs > before:
            with self._news:
                self._news.notify_all()

    def look_again(self) -> None:
        """Return when a look that began after this call has ended: what was committed by now is seen."""
        begun = self.looks
        while self.looks < begun + 2:
            time.sleep(LOOK_SECONDS)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[Callable[[int], tuple[list[tuple[Any, ...]], int]]]:
        with self._connection() as (ask, mark):
            news = (
                "SELECT number, hash, type, kind, stage, attempt, idempotency_key, payload FROM entry"
                f" WHERE delivery_id = {mark} AND number > {mark} ORDER BY number"
            )
            runs = f"SELECT coalesce(sum(token), 0) FROM fence WHERE delivery_id = {mark}"
            yield lambda after: (
                ask(news, (self._delivery_id, after)),
                int(ask(runs, (self._delivery_id,))[0][0]),
            )

    @contextlib.contextmanager
    def _connection(self) -> Iterator[tuple[Callable[..., list[Any]], str]]:
        if isinstance(self._place, Path):
            uri = f"file:{self._place}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as database:
                yield lambda query, values: database.execute(query, values).fetchall(), "?"
        else:
            with psycopg.connect(self._place, autocommit=True, connect_timeout=5) as connection:
                yield lambda query, values: connection.execute(query, values).fetchall(), "%s"


@dataclass(frozen=True)
class Reference:
    """An undisturbed delivery: what the disturbed ones must come to, and how long each place took."""

    outcome: str
    verdicts: list[Any]
    keys: dict[str, int]
    tokens: dict[str, int]
    probes: list[int]
    seconds: dict[Place, float]


@dataclass
class Shot:
    """One kill: wanted in `place` at `delay_seconds` after it began; where it landed is recorded."""

    place: Place
    target: Target
    delay_seconds: float


@dataclass
class Report:
    """What came of one disturbed delivery. `wrong` names everything that must not be."""

    kills: list[dict[str, Any]] = field(default_factory=list)
    outcome: str = ""
    lost: int = 0
    doubled: int = 0
    wrong_verdicts: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def verdicts(entries: list[Entry]) -> list[Any]:
    """What the oracle said, without measured numbers and entry numbers."""
    found: list[Any] = []
    for entry in entries:
        payload = entry["payload"]
        if entry["type"] == "verdict" and entry["kind"] == "stage":
            rules = [[finding["rule"], finding["status"]] for finding in payload["findings"]]
            found.append([entry["stage"], entry["attempt"], payload["status"], rules])
        elif entry["type"] == "verdict":
            found.append([entry["kind"], payload["decision"]])
    return found


def keys(entries: list[Entry], delivery_id: str) -> Counter[str]:
    """Idempotency keys with the delivery's id taken out."""
    return Counter(entry["idempotency_key"].replace(delivery_id, "ID") for entry in entries)


def resumes(key: str) -> bool:
    """Keys that one run more adds by design: a trainer that starts again says so, under its own fence."""
    return key.startswith("job_started:")


def tokens(entries: list[Entry]) -> dict[str, int]:
    """Tokens metered per piece of work."""
    settled = (entry["payload"] for entry in entries if entry["kind"] == "budget_settled")
    return {work["work_id"]: work["amounts"]["tokens"] for work in settled}


def probes(entries: list[Entry]) -> list[int]:
    """Steps probed, in order of record."""
    return [entry["payload"]["step"] for entry in entries if entry["kind"] == "probe_observed"]


def undisturbed(plane: Plane, scenario: str, words: tuple[str, ...] = ()) -> Reference:
    """Run one delivery in peace, the libraries loaded beforehand. `up` runs on the home."""
    _warmed(plane)
    with observed(plane, "undisturbed") as observer:
        shown = plane.json("deliver", scenario, "--id", "undisturbed", *words, code=None)
        observer.wait(observer.closed, 10)
    began, seconds = observer.seen_at[0], {}
    ends = [
        at
        for entry, at in zip(observer.entries, observer.seen_at, strict=True)
        if (entry["type"] == "verdict" and entry["kind"] == "stage") or entry["kind"] == "delivery_closed"
    ]
    for place, end in zip(PLACES, ends, strict=False):
        seconds[place], began = end - began, end
    return Reference(
        outcome=shown["outcome"],
        verdicts=verdicts(observer.entries),
        keys=dict(keys(observer.entries, "undisturbed")),
        tokens=tokens(observer.entries),
        probes=probes(observer.entries),
        seconds=seconds,
    )


def disturbed(
    plane: Plane,
    scenario: str,
    delivery_id: str,
    reference: Reference,
    shots: Callable[[Place], Shot | None],
    *,
    places: tuple[Place, ...] = PLACES,
    database: Any = None,
    words: tuple[str, ...] = (),
    told: Callable[[str], None] = lambda _: None,
) -> Report:
    """One delivery under fire: in each of `places` the shot that `shots` asks for. `up` runs on the home.

    `database`: a `postgres.Postgres`, for shots at it.
    """
    report, began = Report(), time.monotonic()
    with observed(plane, delivery_id) as observer:
        _warmed(plane)
        ordered = plane.start("deliver", scenario, "--id", delivery_id, "--json", *words)
        for number, place in enumerate(places):
            index = PLACES.index(place)
            if not observer.wait(lambda at=index: _reached(observer, at)):
                report.wrong.append(f"{place} was not reached in {PATIENCE_SECONDS:.0f} s")
                break
            shot = shots(place) if _index(observer) == index and not observer.closed() else None
            kill = _fire(plane, observer, shot, database) if shot else None
            if kill:
                report.kills.append({"run": delivery_id, "shot": number + 1, **kill})
                waits = f"{kill['at_work_seconds']} s, next entry {kill['next_entry_seconds']} s"
                told(f"{delivery_id}: {kill['target']} in {kill['stage']}: at work {waits}")
        try:
            out, err = ordered.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            ordered.kill()
            out, err = ordered.communicate()
            report.wrong.append(f"no end within {PATIENCE_SECONDS:.0f} s: {err[-300:]}")
        observer.wait(observer.closed, 10)
    _judge(plane, delivery_id, observer, reference, report, out, err)
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _index(observer: Observer) -> int:
    return PLACES.index(observer.place())


def _reached(observer: Observer, index: int) -> bool:
    return observer.closed() or (bool(observer.entries) and _index(observer) >= index)


@contextlib.contextmanager
def observed(plane: Plane, delivery_id: str) -> Iterator[Observer]:
    """An observer for as long as the context lasts."""
    observer = Observer(plane, delivery_id)
    observer.start()
    try:
        yield observer
    finally:
        observer.stop()


def _warmed(plane: Plane) -> None:
    """Wait until the compute worker has loaded the training libraries."""
    until(lambda: list((plane.home / "logs").glob("warming-up-*.log")), 120)


def _fire(plane: Plane, observer: Observer, shot: Shot, database: Any) -> dict[str, Any] | None:
    """Wait for the moment, kill, and wait for the next entry. None: the delivery ended first."""
    time.sleep(shot.delay_seconds)
    place = observer.place()
    if observer.closed():
        return None
    victim = _kill(plane, place, shot.target, database)
    killed_at = time.monotonic()
    observer.look_again()  # what was committed before the kill is no sign of recovery
    seen, runs = len(observer.entries), observer.runs
    if observer.closed():
        return None
    # At work again: a step has begun anew, or what went on has recorded something.
    observer.wait(lambda: observer.runs > runs or len(observer.entries) > seen)
    at_work = time.monotonic() - killed_at
    came = observer.wait(lambda: len(observer.entries) > seen)
    return {
        "stage": place,
        "target": shot.target,
        "victim": victim,
        "wanted_in": shot.place,
        "planned_delay_seconds": round(shot.delay_seconds, 3),
        "entries_before": seen,
        "at_work_seconds": round(at_work, 2),
        "next_entry_seconds": round(observer.seen_at[seen] - killed_at, 2) if came else None,
    }


def _kill(plane: Plane, place: Place, target: Target, database: Any) -> str:
    """Kill -9 what plays this part in this place, as soon as it lives. Which process that was."""
    if target == "database":
        database.kill()
        database.start()
        return "postmaster"
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):  # nobody lives at this moment
            pid, what = _victim(plane.runtime(), place, target)
            os.kill(pid, signal.SIGKILL)
            return what
        time.sleep(0.02)


def _victim(runtime: dict[str, Any], place: Place, target: Target) -> tuple[int, str]:
    if target == "server":
        return _alive(runtime["server_pid"]), "server"
    queue = "compute" if place in COMPUTE_PLACES else "governance"
    if target == "worker":
        return _alive(runtime["workers"][queue]), queue
    searching = _children(runtime["workers"]["governance"], "delivery_plane.compute.sealed")
    if searching:
        return searching[0], "overlap search"
    fork_server = _children(runtime["workers"]["compute"], "forkserver")[:1]
    if not fork_server:
        raise ProcessLookupError
    at_work = _children(fork_server[0])
    return (at_work[0], "job") if at_work else (fork_server[0], "fork server")


def kinds(home: Path, delivery_id: str) -> list[str]:
    """Kinds of a delivery's entries so far, read beside the platform; none while there is no ledger."""
    query = "SELECT kind FROM entry WHERE delivery_id = ? ORDER BY number"
    with contextlib.suppress(sqlite3.Error):
        uri = f"file:{home / 'ledger.sqlite'}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            return [kind for (kind,) in database.execute(query, (delivery_id,))]
    return []


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        _alive(pid)
    except OSError:
        return True
    return False


def _alive(pid: int) -> int:
    """The pid. Raises OSError when its process is gone or ended."""
    if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
        raise ProcessLookupError
    return pid


def _children(pid: int, called: str = "") -> list[int]:
    """Living children whose command line holds `called`, oldest first. Raises OSError when `pid` is gone."""
    found = []
    for task in Path(f"/proc/{_alive(pid)}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            with contextlib.suppress(OSError):
                if called in Path(f"/proc/{_alive(child)}/cmdline").read_text():
                    found.append(child)
    return sorted(found)


def _judge(
    plane: Plane,
    delivery_id: str,
    observer: Observer,
    reference: Reference,
    report: Report,
    out: str,
    err: str,
) -> None:
    """Compare what is on record with what was seen on the way and with the undisturbed delivery."""
    wrong = report.wrong
    try:
        report.outcome = json.loads(out)["outcome"]
    except (ValueError, KeyError):
        wrong.append(f"deliver printed no result: {out[:300]} {err[-300:]}")
    if report.outcome != reference.outcome:
        wrong.append(f"outcome {report.outcome}, not {reference.outcome}")
    final = plane.entries(delivery_id)
    held = {entry["number"]: entry["hash"] for entry in final}
    missing = [seen["number"] for seen in observer.entries if held.get(seen["number"]) != seen["hash"]]
    report.lost = len(missing)
    wrong += [f"acknowledged entries are gone: {missing}"] if missing else []
    wrong += observer.changed
    expected, found = Counter(reference.keys), keys(final, delivery_id)
    extra = Counter({key: n for key, n in (found - expected).items() if not resumes(key)})
    absent = Counter({key: n for key, n in (expected - found).items() if not resumes(key)})
    report.doubled = extra.total()
    wrong += [f"more than undisturbed: {sorted(extra)}"] if extra else []
    wrong += [f"less than undisturbed: {sorted(absent)}"] if absent else []
    if verdicts(final) != reference.verdicts:
        pairs = zip(verdicts(final), reference.verdicts, strict=False)
        report.wrong_verdicts = sum(mine != theirs for mine, theirs in pairs) or 1
        wrong.append(
            f"verdicts differ: {[mine for mine in verdicts(final) if mine not in reference.verdicts]}"
        )
    if tokens(final) != reference.tokens:
        wrong.append(f"tokens metered: {tokens(final)}, not {reference.tokens}")
    if probes(final) != reference.probes:
        wrong.append(f"probed at {probes(final)}, not {reference.probes}")
    wrong += _resumed_from_elsewhere(final)
    if "verified" not in plane.run("ledger", "verify", code=None):
        wrong.append("the ledger does not verify")
    export = plane.home / f"{delivery_id}.jsonl"
    plane.run("ledger", "export", delivery_id, "--out", str(export))
    judged = plane.json("rejudge", str(export), code=None)
    if judged["differences"]:
        wrong.append(f"rejudged otherwise: {judged['differences']}")


def _resumed_from_elsewhere(entries: list[Entry]) -> list[str]:
    """Starts of a job that did not go on from its last checkpoint on record, under a newer fence."""
    wrong, last, fence = [], 0, 0
    for entry in entries:
        payload = entry["payload"]
        if entry["kind"] == "checkpoint_saved":
            last = payload["step"]
        if entry["kind"] == "job_started":
            if payload["resume_step"] != last or payload["fence"] <= fence:
                wrong.append(f"entry {entry['number']}: from step {payload['resume_step']}, not {last}")
            fence = payload["fence"]
    return wrong


def moment(draw: random.Random, reference: Reference, place: Place) -> float:
    """A uniform moment within the place, as long as it took undisturbed."""
    return draw.uniform(0.0, 0.95 * reference.seconds[place])
