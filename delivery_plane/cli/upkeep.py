"""What an operator does now and then: disk use, garbage, purging, back-up and restore. Each works on one home."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.filesize import decimal
from rich.table import Table

from delivery_plane.backup import restore_backup, write_backup
from delivery_plane.cli.shared import existing_platform, open_home, out, print_json, say, usable
from delivery_plane.errors import BadInput, MachineUnfit
from delivery_plane.upkeep import disk_use, garbage, remove, size_of
from delivery_plane.upkeep import purge as purge_delivery
from workflows.runtime import idle


def disk(*, json: bool = False) -> int:
    """What each delivery takes on disk, and what all of them share. The total is in bytes with --json.

    Parameters
    ----------
    json
        Print a JSON object; all sizes in bytes.
    """
    parts = existing_platform()
    home = parts.home
    uses = disk_use(home, parts.ledger)
    shared = {
        "splits": size_of(home.splits),
        "sealed": size_of(home.sealed),
        "cache": size_of(home.cache),
        "logs": size_of(home.logs),
        "ledger": sum(size_of(path) for path in home.root.glob("ledger.sqlite*")) + size_of(home.heads),
        "server": sum(size_of(path) for path in home.root.glob(f"{home.temporal_database.name}*")),
    }
    total = sum(use.total for use in uses) + sum(shared.values())
    if json:
        print_json(
            {
                "deliveries": [{**vars(use), "total": use.total} for use in uses],
                "shared": shared,
                "total": total,
            }
        )
        return 0
    table = Table(box=None, pad_edge=False)
    table.add_column("delivery")
    table.add_column("outcome")
    for column in ("model", "checkpoints", "rows", "other", "total"):
        table.add_column(column, justify="right")
    for use in uses:
        sizes = (use.artifact, use.jobs, use.datasets, use.other, use.total)
        table.add_row(use.delivery_id, use.outcome or "open", *(decimal(size) for size in sizes))
    out.print(table)
    say("shared: " + ", ".join(f"{name} {decimal(size)}" for name, size in shared.items()))
    say(
        f"in all {decimal(total)}; `deliveries gc` removes what nobody needs, `deliveries purge ID` all files of one"
    )
    return 0


def gc(*, dry_run: bool = False, json: bool = False) -> int:
    """Remove what nobody needs any more: checkpoints of ended deliveries, models that were not accepted, old logs.

    Records, keys, accepted models and everything of an open delivery stay. Works while deliveries run.

    Parameters
    ----------
    dry_run
        Only say what would go.
    json
        Print a JSON object; sizes in bytes.
    """
    parts = existing_platform()
    with idle(parts.home) as nothing_runs:
        found = garbage(parts.home, parts.ledger, idle=nothing_runs)
        if not dry_run:
            for piece in found:
                try:
                    remove(piece)
                except OSError as error:
                    raise MachineUnfit(f"{piece.path}: cannot be removed ({error.strerror})") from None
    total = sum(piece.bytes for piece in found)
    if json:
        pieces = [{"path": str(piece.path), "bytes": piece.bytes, "why": piece.why} for piece in found]
        print_json({"removed": not dry_run, "pieces": pieces, "bytes": total})
        return 0
    for piece in found:
        say(f"{decimal(piece.bytes):>10}  {piece.path.relative_to(parts.home.root)}: {piece.why}")
    say(f"{len(found)} pieces, {decimal(total)} {'to remove' if dry_run else 'removed'}")
    return 0


def purge(
    delivery_id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Why; it is recorded.")],
    json: bool = False,
) -> int:
    """Erase a closed delivery's files: model, checkpoints, rows. For ever; its record stays, with this on it.

    The customer's rows go too, unless another delivery is on the same ones; purge that as well then.

    Parameters
    ----------
    json
        Print a JSON object.
    """
    if not reason.strip():
        raise BadInput("--reason: say why; it is recorded")
    parts = existing_platform()
    done = purge_delivery(parts.home, parts.ledger, delivery_id, reason)
    if json:
        print_json({"delivery_id": delivery_id, **vars(done)})
        return 0
    say(f"{delivery_id}: {done.files} files erased, {decimal(done.bytes)}; its record stays and says so")
    if done.rows_kept_for:
        say(f"its customer's rows stay for {', '.join(done.rows_kept_for)}")
    return 0


def backup(file: Path, /, *, json: bool = False) -> int:
    """Write records, signed heads, orders and KEYS of this home into one new FILE. Works while deliveries run.

    Whoever reads FILE can sign as every identity in it. Models and rows are not in it. Exit code 1 when a record
    in it does not verify: keep the back-up before it, too.

    Parameters
    ----------
    json
        Print a JSON object.
    """
    if not file.name or usable(file, "FILE").exists():
        raise BadInput(f"{file}: name a file that does not exist yet")
    parts = existing_platform()
    made = write_backup(parts.home, parts.ledger, parts.identities, file)
    if json:
        print_json({"file": str(file), **made.manifest.model_dump(), "not_verified": sorted(made.bad)})
    else:
        manifest = made.manifest
        say(
            f"{file}: {manifest.entries} entries of {manifest.deliveries} deliveries, {decimal(size_of(file))}"
        )
        for delivery_id, result in made.bad.items():
            say(f"NOT VERIFIED: {delivery_id}: first bad entry {result.first_bad}: {result.why}")
    return 1 if made.bad else 0


def restore(file: Path, /, *, json: bool = False) -> int:
    """Bring this home's ledger back from a back-up; its open deliveries go on at the next `up`.

    The home may be new, or one whose damaged `ledger.sqlite` was moved away. Everything is checked first.

    Parameters
    ----------
    json
        Print a JSON object.
    """
    usable(file, "FILE")
    _, home = open_home()
    fresh = not home.root.exists()
    if fresh:
        return _restored(file, json)
    with idle(home) as nothing_runs:
        if not nothing_runs:
            raise BadInput(f"{home.root}: a runtime is up on this home; stop it first")
        return _restored(file, json)


def _restored(file: Path, json: bool) -> int:
    done = restore_backup(open_home()[1], file)
    manifest = done.manifest
    if json:
        print_json({**manifest.model_dump(), "set_aside": [str(path) for path in done.set_aside]})
        return 0
    say(f"{manifest.entries} entries of {manifest.deliveries} deliveries are back, as of {manifest.made_at}")
    for path in done.set_aside:
        say(f"set aside: {path}")
    say("Next: delivery-plane ledger verify; delivery-plane up")
    return 0
