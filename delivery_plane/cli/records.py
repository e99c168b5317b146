"""`ledger` and `rejudge`: the record verified, exported, shown, and judged again."""

import re
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from delivery_plane.cli.shared import Whole, existing_platform, print_json, say, usable
from delivery_plane.entry import (
    Checkpoint,
    parse_entries,
    read_checkpoints,
    read_json_lines,
    read_text,
    verify,
)
from delivery_plane.errors import BadInput
from delivery_plane.identity import PLATFORM

_KEY = re.compile(r"[0-9a-f]{64}")

ledger = App(name="ledger", help="Verify, export, show, back up and restore the record.")
for _name, _help in {
    "backup": "Write the ledger of this home and its keys into one file.",
    "restore": "Bring a ledger back from a back-up.",
}.items():
    ledger.command(f"delivery_plane.cli.upkeep:{_name}", name=_name, help=_help)


def _beside(export: Path, suffix: str, given: Path | None, what: str) -> Path:
    if not export.name:
        raise BadInput(f"{export}: name the export's JSON-lines file")
    path = given or export.with_suffix(suffix)
    if not usable(path, what).is_file():
        raise BadInput(f"{path}: no such {what}; name it with --{what.split()[-1]}")
    return path


def read_export(
    export: Path, checkpoint: Path | None, key: Path | None
) -> tuple[list[dict[str, Any]], list[Checkpoint], str]:
    """An export's lines, signed checkpoints and public key, the latter two from beside it unless given.

    Raises BadInput.
    """
    key_file = _beside(export, ".pub", key, "public key")
    public_key = read_text(key_file, "a public key").strip()
    checkpoints = read_checkpoints(_beside(export, ".checkpoint", checkpoint, "checkpoint"))
    # An export of what was never signed comes with no key; that nothing vouches for it is said by `verify`.
    if checkpoints and not _KEY.fullmatch(public_key):
        raise BadInput(f"{key_file}: no public key in it; give the platform's, 64 hex digits")
    return read_json_lines(export), checkpoints, public_key


@ledger.command(name="verify")
def verify_(
    export: Path | None = None,
    /,
    *,
    checkpoint: Path | None = None,
    key: Path | None = None,
    json: bool = False,
) -> int:
    """Check an exported record against its signed checkpoints, or every record on this home.

    Names the first bad entry. Exit code 1 when anything does not hold.

    Parameters
    ----------
    checkpoint
        The signed checkpoints; EXPORT with the ending .checkpoint when left out.
    key
        File with the platform's public key (hex), from somewhere you trust; EXPORT with .pub when left out.
    json
        Print a JSON list.
    """
    if export is None:
        parts = existing_platform()
        public_key = parts.identities.get(PLATFORM).public_key
        heads = {path.stem for path in parts.home.heads.glob("*.checkpoint")}
        known = [*parts.ledger.deliveries()]
        # A head without a record is a record that was removed.
        names = known + sorted(heads - set(known))
        found = {name: parts.ledger.verify(name, public_key) for name in names}
    else:
        found = {str(export): verify(*read_export(export, checkpoint, key))}
    if json:
        print_json([{"record": name, **result.model_dump()} for name, result in found.items()])
    else:
        for name, result in found.items():
            if result.verified:
                line = f"verified: {result.entries} entries, {result.checkpoints} signed heads, head {result.head}"
                if result.signed < result.entries:
                    line += (
                        f"; the last {result.entries - result.signed} entries are chained but not signed yet"
                    )
            else:
                line = f"NOT VERIFIED: first bad entry {result.first_bad}: {result.why}"
            say(f"{name}: {line}")
        if export is not None and key is None:
            say("The key came with the export: compare it with one you trust (--key).")
    return 0 if all(result.verified for result in found.values()) else 1


@ledger.command
def export(
    delivery_id: str,
    /,
    *,
    to: Annotated[Path, Parameter(name="--out", help="JSON-lines file to write.")],
) -> int:
    """Write a delivery's record, its signed checkpoints and the public key.

    It holds operator-only facts (the planted truth): do not hand it to whoever holds the seat.
    """
    for path in existing_platform().ledger.export(delivery_id, to):
        say(str(path))
    return 0


@ledger.command
def show(delivery_id: str, /, *, entry: Whole | None = None, json: bool = False) -> int:
    """A delivery's entries, a line each, or one entry whole.

    Parameters
    ----------
    entry
        Number of the entry to show whole.
    json
        Print JSON.
    """
    entries = existing_platform().ledger.record(delivery_id).entries
    if entry is not None:
        found = [item for item in entries if item.number == entry]
        if not found:
            raise BadInput(f"{delivery_id} has no entry {entry}; it has {len(entries)}")
        print_json(found[0].model_dump(mode="json"))
    elif json:
        print_json([item.model_dump(mode="json") for item in entries])
    else:
        for item in entries:
            place = f"{item.stage} {item.attempt}" if item.stage else ""
            say(
                f"{item.number:>4}  {item.recorded_at[:19]}  {item.type:<7} {item.kind:<22} {place:<12}"
                f" {item.visibility:<8} {item.actor}"
            )
    return 0


@ledger.command
def checkpoint(delivery_id: str, /) -> int:
    """Sign a delivery's head as it stands."""
    parts = existing_platform()
    parts.ledger.record(delivery_id)
    signed = parts.ledger.checkpoint(delivery_id)
    say(f"{delivery_id}: {signed.size} entries, root {signed.root}, in {parts.ledger.head_file(delivery_id)}")
    return 0


def rejudge(export: Path, /, *, json: bool = False) -> int:
    """Judge an exported delivery again from its facts, offline. Exit code 1 when any verdict differs.

    Parameters
    ----------
    json
        Print a JSON object.
    """
    from oracle.judge import rejudge as judge_again

    entries = parse_entries(read_json_lines(export), str(export))
    verdicts = sum(entry.type == "verdict" or entry.kind == "delivery_closed" for entry in entries)
    if not verdicts:
        raise BadInput(f"{export}: no verdict in it; export the ledger of a delivery that was judged")
    differences = judge_again(entries)
    if json:
        print_json({"verdicts": verdicts, "differences": [vars(difference) for difference in differences]})
    else:
        for difference in differences:
            say(
                f"entry {difference.entry}: {difference.what}: recorded {difference.recorded},"
                f" judged again {difference.rejudged}"
            )
        say(
            f"{verdicts} verdicts judged again: "
            + ("all identical" if not differences else f"{len(differences)} differences")
        )
    return 1 if differences else 0
