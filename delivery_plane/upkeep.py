"""What lies on a home's disk: how much, what nobody needs any more, and erasing a delivery. It records one fact."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from delivery_plane.delivery import Outcome
from delivery_plane.errors import BadInput
from delivery_plane.facts import DeliveryClosed, DeliveryOpened, DeliveryPurged
from delivery_plane.ledger import Ledger
from delivery_plane.settings import Home

DAY_SECONDS = 86_400
LOG_DAYS = 14
"""Logs of processes that ended longer ago are removed."""
CACHE_DAYS = 30
"""Evaluations not asked for in so long are made again if need be."""
STRAY_DAYS = 1
"""What a crash left half-made is surely nobody's after so long."""

_ERASING = ".erasing-"


@dataclass(frozen=True)
class Use:
    """Bytes of one delivery's folder: `artifact` the model, `jobs` checkpoints, `datasets` selected rows."""

    delivery_id: str
    outcome: str | None
    """None: still open, or not known to the ledger."""
    artifact: int
    jobs: int
    datasets: int
    other: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.artifact + self.jobs + self.datasets + self.other


@dataclass(frozen=True)
class Garbage:
    """Something that nobody needs any more, and why."""

    path: Path
    bytes: int
    why: str


@dataclass(frozen=True)
class Purged:
    """What a purge erased: files and their bytes, and the data sets it had to leave for other deliveries."""

    files: int
    bytes: int
    rows_kept_for: tuple[str, ...]


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; what vanishes meanwhile counts nothing."""
    return sum(size for _, size in _files(path))


def _files(path: Path) -> Iterator[tuple[Path, int]]:
    for found in [path] if path.is_file() else sorted(path.rglob("*")):
        try:
            if found.is_file() and not found.is_symlink():
                yield found, found.stat().st_size
        except OSError:
            continue


def disk_use(home: Home, ledger: Ledger) -> list[Use]:
    """What each delivery takes, those the ledger knows first, oldest first."""
    outcomes = _outcomes(ledger)
    folders = {path.name for path in _entries(home.deliveries)}
    return [
        _use(home.delivery(name), name, outcomes.get(name))
        for name in (*outcomes, *sorted(folders - set(outcomes)))
    ]


def _use(folder: Path, delivery_id: str, outcome: Outcome | None) -> Use:
    parts = {name: size_of(folder / name) for name in ("artifact", "jobs", "datasets")}
    return Use(delivery_id, outcome, **parts, other=size_of(folder) - sum(parts.values()))


def _outcomes(ledger: Ledger) -> dict[str, Outcome | None]:
    """Every delivery of the ledger with its outcome; None while it is open."""
    found = {}
    for delivery_id in ledger.deliveries():
        closed = ledger.record(delivery_id).last(DeliveryClosed)
        found[delivery_id] = closed.value.outcome if closed else None
    return found


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []


def garbage(home: Home, ledger: Ledger, *, idle: bool) -> list[Garbage]:
    """What can go without loss, with the reason for each.

    Nothing of an open delivery, no record, no key, no accepted model. Data sets that no delivery names are
    among it only when nothing runs on the home (`idle`): an order that is just being opened may need them.
    """
    now = time.time()
    found: list[tuple[Path, str]] = []
    for delivery_id, outcome in _outcomes(ledger).items():
        if outcome is None:
            continue
        folder = home.delivery(delivery_id)
        found.append((folder / "jobs", "checkpoints of a delivery that has ended"))
        if outcome is not Outcome.ACCEPTED:
            found.append((folder / "artifact", f"a model that nobody can fetch: {outcome}"))
    found += [(path, "left by a purge") for path in home.deliveries.glob(f"{_ERASING}*")]
    found += [
        (path, "half-written, left by a crash")
        for path in home.root.rglob(".*.part")
        if _older(path, now, STRAY_DAYS)
    ]
    found += [
        (path, f"an evaluation older than {CACHE_DAYS} days")
        for path in (home.cache / "evaluations").glob("*.json")
        if _older(path, now, CACHE_DAYS)
    ]
    found += [
        (path, f"a log older than {LOG_DAYS} days")
        for path in home.logs.glob("*.log")
        if _older(path, now, LOG_DAYS)
    ]
    if idle:
        needed = {digest[:20] for digest in _data_sets(ledger).values()}
        found += [
            (path, "rows that no delivery names")
            for folder in (home.splits, home.sealed)
            for path in _entries(folder)
            if path.is_dir() and path.name not in needed
        ]
    return [Garbage(path, size_of(path), why) for path, why in found if path.exists()]


def _older(path: Path, now: float, days: int) -> bool:
    try:
        return now - path.stat().st_mtime > days * DAY_SECONDS
    except OSError:
        return False


def _data_sets(ledger: Ledger) -> dict[str, str]:
    """The scenario digest that each delivery's rows lie under; purged deliveries need none."""
    found = {}
    for delivery_id in ledger.deliveries():
        record = ledger.record(delivery_id)
        opened = record.last(DeliveryOpened)
        if opened and not record.last(DeliveryPurged):
            found[delivery_id] = opened.value.scenario_digest
    return found


def remove(found: Garbage) -> None:
    """Remove one piece of garbage; what is gone already is well. Raises OSError."""
    if found.path.is_dir():
        shutil.rmtree(found.path)
    else:
        found.path.unlink(missing_ok=True)


def purge(home: Home, ledger: Ledger, delivery_id: str, reason: str) -> Purged:
    """Erase a delivery's files and, where no other delivery needs them, its customer's rows; record that.

    The record itself stays and still verifies: it holds ids, digests and counts. Killed halfway, a second call
    finishes. Raises BadInput for a delivery that is open, unknown or purged already.
    """
    record = ledger.record(delivery_id)
    if record.last(DeliveryClosed) is None:
        raise BadInput(f"{delivery_id} is still open; end it first with `deliveries cancel {delivery_id}`")
    aside = home.deliveries / f"{_ERASING}{delivery_id}"
    before = record.last(DeliveryPurged)
    if before and not aside.exists():
        raise BadInput(f"{delivery_id} was purged already (entry {before.entry})")
    opened = record.last(DeliveryOpened)
    digest = opened.value.scenario_digest if opened else None
    others = tuple(
        other for other, needs in _data_sets(ledger).items() if needs == digest and other != delivery_id
    )
    # One rename, and from here on nobody finds half a model; the fact follows, the bytes go last.
    folder = home.delivery(delivery_id)
    if folder.exists():
        aside.mkdir(mode=0o700, exist_ok=True)
        folder.replace(aside / "delivery")
    if digest and not others and not before:
        aside.mkdir(mode=0o700, exist_ok=True)
        for place in (home.splits, home.sealed):
            if (place / digest[:20]).exists():
                (place / digest[:20]).replace(aside / place.name)
    erased = list(_files(aside)) if aside.exists() else []
    files, total = len(erased), sum(size for _, size in erased)
    ledger.fact(delivery_id, DeliveryPurged(files=files, bytes=total, rows_kept_for=others, reason=reason))
    ledger.checkpoint(delivery_id)
    if aside.exists():
        shutil.rmtree(aside)
    return Purged(files, total, others)
