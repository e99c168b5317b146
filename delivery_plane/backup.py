"""A ledger's back-up in one file, and back from it: records, signed heads, keys and orders. No models, no rows.

What it leaves out (checkpoints, data sets, models) is either made again from the record or was fetched by then.
"""

import json
import os
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from delivery_plane import __version__
from delivery_plane.claims import problems
from delivery_plane.delivery import Frozen
from delivery_plane.entry import Verification, parse_checkpoints, parse_json_lines, verify
from delivery_plane.errors import BadInput, MachineUnfit, one_line
from delivery_plane.files import write_once, write_whole
from delivery_plane.identity import PLATFORM, Identities, Identity
from delivery_plane.ledger import ROW_FIELDS, Ledger
from delivery_plane.settings import Home

_ROWS = "ledger.jsonl"
_MANIFEST = "manifest.json"


class Manifest(Frozen):
    """What a back-up says of itself."""

    format: Literal[1] = 1
    release: str
    made_at: str
    public_key: str
    deliveries: int
    entries: int


@dataclass(frozen=True)
class Backup:
    """A back-up that was written or restored."""

    manifest: Manifest
    bad: dict[str, Verification]
    """Deliveries whose record does not verify."""
    set_aside: tuple[Path, ...] = ()
    """What lay in the home and was moved out of the way."""


def write_backup(home: Home, ledger: Ledger, identities: Identities, path: Path) -> Backup:
    """Write everything a home needs to go on with its record into `path` (mode 0600: it holds private keys).

    The ledger may be in use. Raises BadInput when the place cannot be written.
    """
    public_key = identities.get(PLATFORM).public_key
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                # Heads before rows: rows may be further than the heads that vouch for them, never behind.
                for name, source in _beside(home):
                    archive.write(source, name)
                seen, entries = set(), 0
                with archive.open(_ROWS, "w", force_zip64=True) as rows:
                    for kind, fields in ledger.dump():
                        rows.write(json.dumps([kind, fields]).encode() + b"\n")
                        if kind == "entry":
                            seen.add(fields["delivery_id"])
                            entries += 1
                manifest = Manifest(
                    release=__version__,
                    made_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    public_key=public_key,
                    deliveries=len(seen),
                    entries=entries,
                )
                archive.writestr(_MANIFEST, manifest.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror}); choose another place") from None
    finally:
        aside.unlink(missing_ok=True)
    return Backup(manifest, _unverified(_Archive(path)))


def _beside(home: Home) -> Iterator[tuple[str, Path]]:
    for path in sorted(home.heads.glob("*.checkpoint")):
        yield f"heads/{path.name}", path
    for path in sorted(home.identities.glob("*.json")):
        yield f"identities/{path.name}", path
    for path in sorted(home.deliveries.glob("*/spec.json")):
        yield f"orders/{path.parent.name}.json", path
    if (home.sealed / "secret").exists():
        yield "sealed-secret", home.sealed / "secret"


class _Archive:
    """A back-up's file, read and checked in form. Raises BadInput."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
            self.manifest = Manifest.model_validate_json(self._zip.read(_MANIFEST))
        except (OSError, zipfile.BadZipFile, KeyError, EOFError, RuntimeError, NotImplementedError) as error:
            raise BadInput(f"{path}: no back-up of a ledger ({one_line(error, 100)})") from None
        except ValidationError as error:
            raise BadInput(f"{path}: no back-up that this release reads: {problems(error)}") from None
        self.heads = self._folder("heads/", ".checkpoint")
        self.identities = self._folder("identities/", ".json")
        self.orders = self._folder("orders/", ".json")
        self.secret = self._read("sealed-secret") if "sealed-secret" in self._zip.namelist() else None
        self._check_keys()

    def _check_keys(self) -> None:
        """Raise BadInput unless the keys are whole, the one that signed the heads among them."""
        for name, data in self.identities.items():
            try:
                identity = Identity.model_validate_json(data)
            except ValidationError as error:
                raise BadInput(f"{self._path}: identities/{name}.json: {problems(error)}") from None
            if name == PLATFORM and identity.public_key == self.manifest.public_key:
                return
        raise BadInput(f"{self._path}: lacks the {PLATFORM} identity that signed its heads")

    def _folder(self, folder: str, suffix: str) -> dict[str, bytes]:
        """Files of one folder by their bare name; anything deeper or stranger is no part of a back-up."""
        found = {}
        for name in self._zip.namelist():
            bare = name.removeprefix(folder).removesuffix(suffix)
            if name == f"{folder}{bare}{suffix}" and bare and Path(bare).name == bare:
                found[bare] = self._read(name)
        return found

    def _read(self, name: str) -> bytes:
        try:
            return self._zip.read(name)
        except (OSError, zipfile.BadZipFile, EOFError, RuntimeError, ValueError) as error:
            raise BadInput(f"{self._path}: {name}: damaged ({one_line(error, 100)})") from None

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The ledger's rows in order."""
        try:
            with self._zip.open(_ROWS) as lines:
                for line in lines:
                    kind, fields = json.loads(line)
                    if set(fields) != ROW_FIELDS[kind]:
                        raise ValueError(f"a {kind} has other fields")
                    yield kind, fields
        except (OSError, zipfile.BadZipFile, LookupError, EOFError, ValueError, TypeError) as error:
            raise BadInput(f"{self._path}: {_ROWS}: damaged ({one_line(error, 100)})") from None


def _unverified(archive: _Archive) -> dict[str, Verification]:
    """Deliveries of a back-up whose rows do not hold against their heads. One that was never signed has none."""
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for kind, fields in archive.rows():
        if kind == "entry":
            try:
                payload = json.loads(fields["payload"])
            except ValueError:
                payload = fields["payload"]
            records[fields["delivery_id"]].append({**fields, "payload": payload})
    bad = {}
    for delivery_id, head in archive.heads.items():
        where = f"heads/{delivery_id}.checkpoint"
        checkpoints = parse_checkpoints(parse_json_lines(head.decode(errors="replace"), where), where)
        result = verify(records[delivery_id], checkpoints, archive.manifest.public_key)
        if not result.verified:
            bad[delivery_id] = result
    return bad


def restore_backup(home: Home, path: Path) -> Backup:
    """Bring a ledger back from `path` onto a home that has none, its open deliveries ready to go on.

    Everything is checked first. Heads and server state that lie in the home already are set aside: they tell of
    what came after the back-up. The database comes last, so a restore that was killed is simply done again.
    Raises BadInput or LedgerUnfit and leaves the home as it was when something does not fit.
    """
    archive = _Archive(path)
    bad = _unverified(archive)
    if bad:
        delivery_id, result = next(iter(bad.items()))
        raise BadInput(
            f"{path}: {len(bad)} records do not verify, {delivery_id} from entry {result.first_bad} on: {result.why}"
        )
    _check_free(home)
    keys = {home.identities / f"{name}.json": data for name, data in archive.identities.items()}
    if archive.secret is not None:
        keys[home.sealed / "secret"] = archive.secret
    for there, data in keys.items():
        if there.exists() and there.read_bytes() != data:
            raise BadInput(f"{there} is not the back-up's; move it away, or restore into another home")
    home.create()
    try:
        set_aside = _set_aside(home, archive)
        for there, data in keys.items():
            write_once(there, data)
        for name, data in archive.heads.items():
            write_whole(home.heads / f"{name}.checkpoint", data)
        for name, data in archive.orders.items():
            home.delivery(name).mkdir(mode=0o700, exist_ok=True)
            write_whole(home.delivery(name) / "spec.json", data)
        _load(home, archive)
    except OSError as error:
        raise MachineUnfit(
            f"{home.root}: cannot be written ({error.strerror}); see to it and restore again"
        ) from None
    return Backup(archive.manifest, {}, set_aside)


def _check_free(home: Home) -> None:
    """Raise BadInput where a ledger is already."""
    if isinstance(home.ledger, Path):
        if home.ledger.exists():
            raise BadInput(f"{home.ledger} exists; move it away first, or restore into another home")
        return
    ledger = Ledger(home.ledger, home.heads)
    try:
        if ledger.deliveries():
            raise BadInput("DELIVERY_PLANE_DATABASE holds deliveries; restore into an empty database")
    finally:
        ledger.close()


def _set_aside(home: Home, archive: _Archive) -> tuple[Path, ...]:
    """Move heads that are not the back-up's and the embedded server's state out of the way."""
    foreign = [
        path for path in home.heads.glob("*.checkpoint") if path.read_bytes() != archive.heads.get(path.stem)
    ]
    # The server may know of steps that this ledger does not; deliveries go on from the ledger alone.
    stale = sorted(home.root.glob(f"{home.temporal_database.name}*"))
    if not foreign and not stale:
        return ()
    place = home.root / f"set-aside-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    place.mkdir(mode=0o700)
    return tuple(path.replace(place / path.name) for path in (*foreign, *stale))


def _load(home: Home, archive: _Archive) -> None:
    if isinstance(home.ledger, str):
        ledger = Ledger(home.ledger, home.heads, Identities(home.identities).get(PLATFORM).key)
        try:
            ledger.load(archive.rows())
        finally:
            ledger.close()
        return
    aside = home.ledger.with_name(f".{home.ledger.name}.part")
    for left in home.root.glob(f"{aside.name}*"):
        left.unlink()
    ledger = Ledger(aside, home.heads, Identities(home.identities).get(PLATFORM).key)
    try:
        ledger.load(archive.rows())
    finally:
        ledger.close()
    # Closing the last connection folds the log into the file, which can then take its name at once.
    aside.replace(home.ledger)
