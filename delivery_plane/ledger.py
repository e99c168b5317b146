"""The append-only record of every delivery: facts, claims, verdicts, chained and signed. It judges nothing.

One table. Appends to a delivery happen in transactions that come one after another, so whoever reads before
writing (a gate, a budget, a fence) decides on what is really there. The signed head of every delivery
lies outside the database, in `heads/`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError
from sqlmodel import Session, select

from delivery_plane.claims import Claim, problems
from delivery_plane.database import Database, EntryRow, FenceRow
from delivery_plane.delivery import Frozen, StageName
from delivery_plane.entry import (
    GENESIS,
    Checkpoint,
    Entry,
    Verification,
    canonical,
    entry_hash,
    parse_checkpoints,
    parse_json,
    parse_json_lines,
    read_input,
    sign_checkpoint,
    verify,
)
from delivery_plane.errors import BadInput, LedgerFault, LedgerUnfit, StaleFence, attributed
from delivery_plane.facts import FactBase, Visibility
from delivery_plane.record import Record
from delivery_plane.verdicts import Acceptance, StageVerdict

ROW_FIELDS = {"entry": set(EntryRow.model_fields) - {"id"}, "fence": set(FenceRow.model_fields)}
"""What `Ledger.dump` gives of each kind of row."""


class Fence(Frozen):
    """A writer's right to append on behalf of a resource; void once a higher token is given out."""

    resource: str
    token: int


def _fields(row: EntryRow) -> dict[str, Any]:
    """A row as the entry's JSON fields; a payload that is not JSON comes as the text it is."""
    fields = row.model_dump(exclude={"id"})
    try:
        return {**fields, "payload": parse_json(row.payload)}
    except ValueError:
        return fields


def _to_entry(row: EntryRow) -> Entry:
    try:
        return Entry.model_validate(_fields(row))
    except ValidationError as error:
        raise LedgerFault(
            f"entry {row.number} of {row.delivery_id} is damaged ({problems(error)});"
            " see `ledger verify`, and restore the database from a back-up"
        ) from None


def utc_now() -> datetime:
    """The platform's clock."""
    return datetime.now(UTC)


def _storable(key: str) -> str:
    """A key as every database can hold it: PostgreSQL's texts have no NUL, and a key may quote a seat's words."""
    return key.replace("\0", "\N{SYMBOL FOR NULL}")


class Writer:
    """Appends within one transaction, seeing everything recorded before it."""

    def __init__(self, session: Session, delivery_id: str) -> None:
        self._session = session
        self._delivery_id = delivery_id
        rows = session.exec(
            select(EntryRow).where(EntryRow.delivery_id == delivery_id).order_by(EntryRow.number)  # type: ignore[arg-type]
        ).all()
        self.entries = [_to_entry(row) for row in rows]
        self._by_key = {entry.idempotency_key: entry for entry in self.entries}

    @property
    def record(self) -> Record:
        """Everything recorded so far, this transaction's appends included."""
        return Record(self.entries)

    def find(self, idempotency_key: str) -> Entry | None:
        """The entry written under a key, or None."""
        return self._by_key.get(_storable(idempotency_key))

    def fact(
        self,
        fact: FactBase,
        *,
        key: str | None = None,
        stage: StageName | None = None,
        attempt: int = 0,
        actor: str = "platform",
        fence: Fence | None = None,
    ) -> Entry:
        """Append a fact; a fact already written under its key is returned as it stands."""
        payload = fact.model_dump(mode="json")
        key = key or f"{payload['kind']}:{stage or '-'}:{attempt}:{fact.key()}"
        return self._append(
            "fact", payload["kind"], payload, key, fact.visibility, actor, stage, attempt, fence
        )

    def claim(self, claim: Claim, *, key: str, stage: StageName, attempt: int, actor: str) -> Entry:
        """Append a seat's claim."""
        payload = claim.model_dump(mode="json")
        return self._append("claim", claim.stage, payload, key, Visibility.SEAT, actor, stage, attempt, None)

    def verdict(
        self,
        kind: Literal["stage", "acceptance"],
        verdict: StageVerdict | Acceptance,
        *,
        stage: StageName | None,
        attempt: int,
    ) -> Entry:
        """Append the oracle's verdict, one per stage visit. Operator only until the outcome."""
        payload = verdict.model_dump(mode="json")
        key = f"verdict:{kind}:{stage or '-'}:{attempt}"
        return self._append(
            "verdict", kind, payload, key, Visibility.OPERATOR, "oracle", stage, attempt, None
        )

    def _append(
        self,
        type_: str,
        kind: str,
        payload: dict[str, Any],
        key: str,
        visibility: Visibility,
        actor: str,
        stage: StageName | None,
        attempt: int,
        fence: Fence | None,
    ) -> Entry:
        if existing := self.find(key):
            return existing
        key = _storable(key)
        if fence:
            self._hold(fence)
        previous = self.entries[-1] if self.entries else None
        # Wall clocks go backwards; the record's order is its numbers, and its times never contradict it.
        now = utc_now().isoformat(timespec="microseconds")
        fields: dict[str, Any] = {
            "delivery_id": self._delivery_id,
            "number": previous.number + 1 if previous else 1,
            "type": type_,
            "kind": kind,
            "stage": stage,
            "attempt": attempt,
            "visibility": visibility.value,
            "actor": actor,
            "recorded_at": max(now, previous.recorded_at) if previous else now,
            "idempotency_key": key,
            "payload": payload,
            "prev_hash": previous.hash if previous else GENESIS,
        }
        fields["hash"] = entry_hash(fields)
        entry = Entry.model_validate(fields)
        self._session.add(EntryRow(**{**fields, "payload": canonical(payload).decode()}))
        self._session.flush()
        self.entries.append(entry)
        self._by_key[key] = entry
        return entry

    def _hold(self, fence: Fence) -> None:
        row = self._session.get(FenceRow, (self._delivery_id, fence.resource))
        if row is None or row.token != fence.token:
            raise StaleFence(
                f"{self._delivery_id}: token {fence.token} for {fence.resource} was superseded"
                f" by {row.token if row else 'none'}"
            )

    def next_fence(self, resource: str) -> Fence:
        """A token above every one given out for the resource so far; the older ones are void."""
        row = self._session.get(FenceRow, (self._delivery_id, resource))
        if row is None:
            row = FenceRow(delivery_id=self._delivery_id, resource=resource, token=0)
        row.token += 1
        self._session.add(row)
        self._session.flush()
        return Fence(resource=resource, token=row.token)


class Ledger:
    """The ledger on one database, with its signed heads in a folder beside it."""

    def __init__(self, place: Path | str, heads: Path, key: Ed25519PrivateKey | None = None) -> None:
        self._heads = heads
        self._key = key
        self._database = Database(place)
        if key is not None:
            public_key = key.public_key().public_bytes_raw().hex()
            self._database.claim_owner(public_key, utc_now().isoformat(timespec="seconds"))

    def close(self) -> None:
        """Release the database's connections."""
        self._database.engine.dispose()

    @contextmanager
    def writing(self, delivery_id: str) -> Iterator[Writer]:
        """One serialised transaction on a delivery's record: all of it is written, or none."""
        with self._database.writing(delivery_id, f"append to {delivery_id}") as session:
            yield Writer(session, delivery_id)

    def fact(
        self,
        delivery_id: str,
        fact: FactBase,
        *,
        key: str | None = None,
        stage: StageName | None = None,
        attempt: int = 0,
        actor: str = "platform",
        fence: Fence | None = None,
    ) -> Entry:
        """Append one fact in a transaction of its own."""
        with self.writing(delivery_id) as writer:
            return writer.fact(fact, key=key, stage=stage, attempt=attempt, actor=actor, fence=fence)

    def _rows(self, delivery_id: str, after: int = 0) -> Sequence[EntryRow]:
        with self._database.reading(f"read {delivery_id}") as session:
            return session.exec(
                select(EntryRow)
                .where(EntryRow.delivery_id == delivery_id, EntryRow.number > after)
                .order_by(EntryRow.number)  # type: ignore[arg-type]
            ).all()

    def entries(self, delivery_id: str, after: int = 0) -> list[Entry]:
        """A delivery's entries with numbers above `after`, in order. Raises LedgerFault for a damaged one."""
        return [_to_entry(row) for row in self._rows(delivery_id, after)]

    def record(self, delivery_id: str, *, for_oracle: bool = False) -> Record:
        """A typed view of a delivery's entries. Raises BadInput for an unknown delivery."""
        entries = self.entries(delivery_id)
        if not entries:
            raise BadInput(f"no delivery {delivery_id} in this ledger; `deliveries list` shows what there is")
        return Record(entries, for_oracle=for_oracle)

    def deliveries(self) -> list[str]:
        """Ids of all deliveries, oldest first."""
        with self._database.reading("list deliveries") as session:
            return list(
                session.exec(
                    select(EntryRow.delivery_id).where(EntryRow.number == 1).order_by(EntryRow.id)  # type: ignore[arg-type]
                ).all()
            )

    def head_file(self, delivery_id: str) -> Path:
        """Where a delivery's signed checkpoints lie."""
        return self._heads / f"{delivery_id}.checkpoint"

    def checkpoints(self, delivery_id: str) -> list[Checkpoint]:
        """The signed checkpoints so far."""
        path = self.head_file(delivery_id)
        whole = (
            _whole_lines(read_input(path, "back what was signed, from a back-up")) if path.exists() else b""
        )
        return parse_checkpoints(parse_json_lines(whole.decode(errors="replace"), str(path)), str(path))

    def checkpoint(self, delivery_id: str) -> Checkpoint:
        """Sign the head and append it to the heads folder, synced to disk before returning."""
        if self._key is None:
            raise LedgerFault("this ledger was opened without the platform's key and cannot sign")
        with self.writing(delivery_id) as writer:  # serialised: two signers never write the same span
            done = self.checkpoints(delivery_id)
            if done:
                self._still_holds(done[-1], writer.entries)
            if done and done[-1].size == len(writer.entries):
                return done[-1]
            signed = sign_checkpoint(
                self._key,
                writer.entries,
                done[-1].size if done else 0,
                utc_now().isoformat(timespec="seconds"),
            )
            with attributed(LedgerFault, f"write head of {delivery_id}"):
                _append_line(self.head_file(delivery_id), canonical(signed.model_dump(mode="json")))
        return signed

    @staticmethod
    def _still_holds(last: Checkpoint, entries: Sequence[Entry]) -> None:
        """Raise LedgerFault rather than put a new signature over a record that left its last signed head."""
        if len(entries) < last.size or entries[last.size - 1].hash != last.root:
            raise LedgerFault(
                f"{last.origin} no longer holds the {last.size} entries that were signed; see `ledger verify`"
            )

    def verify(self, delivery_id: str, public_key: str) -> Verification:
        """Check a delivery's chain against its signed checkpoints."""
        return verify(
            [_fields(row) for row in self._rows(delivery_id)], self.checkpoints(delivery_id), public_key
        )

    def dump(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every row of the ledger as (`entry` or `fence`, its fields), in the order they were written."""
        with self._database.reading("read the whole ledger") as session:
            # One statement sees one state. Fences come after: a token above what was given out does no harm.
            rows = select(EntryRow).order_by(EntryRow.id).execution_options(yield_per=500)  # type: ignore[arg-type]
            for entry in session.exec(rows):
                yield "entry", entry.model_dump(exclude={"id"})
            for fence in session.exec(select(FenceRow)):
                yield "fence", fence.model_dump()

    def load(self, rows: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Write what `dump` gave into this ledger, all or nothing. Raises LedgerUnfit unless it is empty."""
        with self._database.writing("everything", "restore") as session:
            if session.exec(select(EntryRow.id)).first() is not None:
                raise LedgerUnfit(f"{self._database.name} holds deliveries; restore into an empty database")
            for kind, fields in rows:
                session.add(EntryRow(**fields) if kind == "entry" else FenceRow(**fields))
                session.flush()

    def export(self, delivery_id: str, path: Path) -> Sequence[Path]:
        """Write the record as JSON lines, with its checkpoints and the public key beside it."""
        if not path.name or path.suffix in (".checkpoint", ".pub"):
            raise BadInput(f"{path}: name a JSON-lines file; .checkpoint and .pub are written beside it")
        entries = self.record(delivery_id).entries
        checkpoints = self.checkpoints(delivery_id)
        beside = {
            path: [entry.model_dump(mode="json") for entry in entries],
            path.with_suffix(".checkpoint"): [
                checkpoint.model_dump(mode="json") for checkpoint in checkpoints
            ],
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for file, lines in beside.items():
                file.write_bytes(b"".join(canonical(line) + b"\n" for line in lines))
            key_file = path.with_suffix(".pub")
            key_file.write_text((checkpoints[-1].public_key if checkpoints else "") + "\n")
        except OSError as error:
            raise BadInput(f"{path}: cannot be written ({error.strerror}); choose another place") from None
        return (*beside, key_file)


def _whole_lines(data: bytes) -> bytes:
    """What was written completely: a crash may have torn the last line."""
    return data[: data.rfind(b"\n") + 1]


def _append_line(path: Path, line: bytes) -> None:
    """Append one line durably; a line torn by a crash is cut off first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        data = b""
        while chunk := os.read(descriptor, 1 << 20):
            data += chunk
        whole = len(_whole_lines(data))
        os.ftruncate(descriptor, whole)
        os.lseek(descriptor, whole, os.SEEK_SET)
        os.write(descriptor, line + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
