"""One line of a delivery's record, its hash chain and signed checkpoints. Pure: no database, no files written.

The chain alone cannot show a re-hashed or shortened record; the signed checkpoint, kept outside the
database, can. A checkpoint carries the hashes of all entries since the one before, so verification
names the first bad entry even when every hash after it was recomputed.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import ValidationError

from delivery_plane.claims import Claim, parse_claim, problems
from delivery_plane.delivery import Frozen, StageName
from delivery_plane.errors import BadInput, one_line
from delivery_plane.facts import Fact, Visibility, parse_fact

GENESIS = "0" * 64

LARGEST_INPUT_BYTES = 256 * 1024 * 1024
"""Above a thousand times what a delivery's export takes."""

DEEPEST_JSON = 64
"""Levels of nesting in JSON from outside; an entry has about six."""


class Entry(Frozen):
    """One appended record. `number` counts from 1 within the delivery; `hash` covers all other fields."""

    delivery_id: str
    number: int
    type: Literal["fact", "claim", "verdict"]
    kind: str
    stage: StageName | None
    attempt: int
    visibility: Visibility
    actor: str
    recorded_at: str
    idempotency_key: str
    payload: dict[str, Any]
    prev_hash: str
    hash: str

    def fact(self) -> Fact:
        """The payload as its typed fact."""
        return parse_fact(self.payload)

    def claim(self) -> Claim:
        """The payload as its typed claim."""
        return parse_claim(self.payload)


class Checkpoint(Frozen):
    """A signed statement that the first `size` entries of `origin` end in `root`."""

    origin: str
    size: int
    root: str
    since: int
    hashes: tuple[str, ...]
    signed_at: str
    public_key: str
    signature: str


class Verification(Frozen):
    """Whether a record holds. `first_bad` is the first entry that is wrong or missing.

    `signed` entries are vouched for by a checkpoint; those after them by the chain alone.
    """

    verified: bool
    entries: int
    signed: int
    head: str
    checkpoints: int
    first_bad: int | None = None
    why: str = ""


def canonical(value: Any) -> bytes:
    """RFC 8785 canonical JSON: equal values give equal bytes."""
    return rfc8785.dumps(value)


def sha256(data: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def entry_hash(fields: dict[str, Any]) -> str:
    """Hash of an entry given as a JSON-ready dict; its own `hash` is left out."""
    return sha256(canonical({name: value for name, value in fields.items() if name != "hash"}))


def sign_checkpoint(
    key: Ed25519PrivateKey, entries: Sequence[Entry], since: int, signed_at: str
) -> Checkpoint:
    """A checkpoint over all `entries` of one delivery, carrying the hashes after the first `since`."""
    body = {
        "origin": entries[-1].delivery_id,
        "size": entries[-1].number,
        "root": entries[-1].hash,
        "since": since,
        "hashes": [entry.hash for entry in entries if entry.number > since],
        "signed_at": signed_at,
        "public_key": key.public_key().public_bytes_raw().hex(),
    }
    return Checkpoint.model_validate({**body, "signature": key.sign(canonical(body)).hex()})


def _signed_by(checkpoint: Checkpoint, public_key: str) -> bool:
    body = checkpoint.model_dump(mode="json", exclude={"signature"})
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(
            bytes.fromhex(checkpoint.signature), canonical(body)
        )
    except (InvalidSignature, ValueError):
        return False
    return checkpoint.public_key == public_key


def verify(
    lines: Sequence[dict[str, Any]], checkpoints: Sequence[Checkpoint], public_key: str
) -> Verification:
    """Check a delivery's record, given as JSON dicts in order, against its signed checkpoints."""
    head = one_line(lines[-1].get("hash", ""), 64) if lines else GENESIS

    def bad(number: int, why: str) -> Verification:
        return Verification(
            verified=False,
            entries=len(lines),
            signed=min(number - 1, len(signed)),
            head=head,
            checkpoints=len(checkpoints),
            first_bad=number,
            why=why,
        )

    signed: list[str] = []
    if not checkpoints:
        return bad(1, "no signed checkpoint: nothing outside the record vouches for it")
    for checkpoint in checkpoints:
        if not _signed_by(checkpoint, public_key):
            return bad(len(signed) + 1, f"checkpoint of size {checkpoint.size} is not signed by this key")
        if checkpoint.since != len(signed) or checkpoint.size != len(signed) + len(checkpoint.hashes):
            return bad(len(signed) + 1, "checkpoints do not follow one another")
        signed.extend(checkpoint.hashes)
        if not signed or signed[-1] != checkpoint.root:
            return bad(checkpoint.size, "checkpoint root is not its last hash")
    origin = checkpoints[-1].origin
    previous = GENESIS
    for number, fields in enumerate(lines, start=1):
        try:
            entry = Entry.model_validate(fields)
        except ValidationError as error:
            return bad(number, f"not an entry: {problems(error)}")
        if entry.delivery_id != origin:
            return bad(number, f"belongs to {entry.delivery_id}, the checkpoints to {origin}")
        if entry.number != number:
            return bad(number, f"numbered {entry.number} in place {number}: reordered, removed or inserted")
        if entry.prev_hash != previous:
            return bad(number, "does not follow the entry before it")
        try:
            matches = entry_hash(fields) == entry.hash
        except ValueError as error:  # a value that canonical JSON has no form for
            return bad(number, f"not an entry: {one_line(error, 200)}")
        if not matches:
            return bad(number, "content does not match its hash")
        if number <= len(signed) and entry.hash != signed[number - 1]:
            return bad(number, "hash differs from the signed checkpoint: rewritten after signing")
        previous = entry.hash
    closed = next(
        (at for at, fields in enumerate(lines, start=1) if fields["kind"] == "delivery_closed"), None
    )
    if closed is not None and closed <= len(signed):
        for number, fields in enumerate(lines[len(signed) :], start=len(signed) + 1):
            # An operator may still have its files erased; whoever killed that halfway left it unsigned.
            if fields["kind"] != "delivery_purged":
                return bad(number, "appended after the delivery was closed and signed")
    if len(lines) < len(signed):
        return bad(len(lines) + 1, f"missing: {len(signed)} entries were signed, {len(lines)} are here")
    return Verification(
        verified=True, entries=len(lines), signed=len(signed), head=head, checkpoints=len(checkpoints)
    )


def read_input(path: Path, wanted: str) -> bytes:
    """The bytes of a file that somebody gave; `wanted` says what it should be. Raises BadInput.

    Only a file with an end is read: a pipe would be waited for, a device may never end.
    """
    why = f"above {LARGEST_INPUT_BYTES // 1024**2} MiB"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                why = "no regular file"
            elif len(data := file.read(LARGEST_INPUT_BYTES + 1)) <= LARGEST_INPUT_BYTES:
                return data
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    raise BadInput(f"{path}: cannot be read ({why}); give {wanted}")


def read_text(path: Path, wanted: str) -> str:
    """As `read_input`, decoded. Raises BadInput, also for bytes that are not UTF-8."""
    try:
        return read_input(path, wanted).decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path}: cannot be read (not UTF-8 text); give {wanted}") from None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The dicts of a JSON-lines file. Raises BadInput naming the line."""
    return parse_json_lines(read_text(path, "a JSON-lines file"), str(path))


def parse_json_lines(text: str, where: str) -> list[dict[str, Any]]:
    """The dicts of JSON lines. Raises BadInput naming the line."""
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            raise BadInput(f"{where}:{number}: not JSON ({error}); export the ledger again") from None
        if not isinstance(value, dict):
            raise BadInput(f"{where}:{number}: not a JSON object; export the ledger again")
        found.append(value)
    return found


def parse_json(text: str) -> Any:
    """A JSON value that every reader understands alike. Raises ValueError.

    Refused besides what is no JSON: a name given twice in an object, NaN and Infinity, deep nesting.
    """
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST_JSON} levels") from None
    level = [value]
    for _ in range(DEEPEST_JSON):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise ValueError(f"nested deeper than {DEEPEST_JSON} levels")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is given twice in one object")
    return fields


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def read_checkpoints(path: Path) -> list[Checkpoint]:
    """The checkpoints of a file, in order. Raises BadInput."""
    return parse_checkpoints(read_json_lines(path), str(path))


def parse_checkpoints(lines: Iterable[dict[str, Any]], where: str) -> list[Checkpoint]:
    """Checkpoints from JSON dicts. Raises BadInput."""
    try:
        return [Checkpoint.model_validate(fields) for fields in lines]
    except ValidationError as error:
        raise BadInput(f"{where}: not a checkpoint file: {problems(error)}") from None


def parse_entries(lines: Iterable[dict[str, Any]], where: str) -> list[Entry]:
    """Entries from JSON dicts. Raises BadInput naming the first that is not one."""
    entries = []
    for number, fields in enumerate(lines, start=1):
        try:
            entries.append(Entry.model_validate(fields))
        except ValidationError as error:
            raise BadInput(f"{where}: entry {number} is not an entry: {problems(error)}") from None
    return entries
