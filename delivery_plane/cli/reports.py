"""A delivery's report as a file: where it may be written, from this home or from an export. No layout here."""

import tempfile
from pathlib import Path

from delivery_plane.cli.records import read_export
from delivery_plane.cli.shared import usable
from delivery_plane.entry import parse_entries, verify
from delivery_plane.errors import BadInput
from delivery_plane.files import write_whole
from delivery_plane.identity import PLATFORM
from workflows.platform import Platform


def check_writable(path: Path, flag: str) -> Path:
    """A place where a report can be put, found out before any work is done. Raises BadInput."""
    if not path.name:
        raise BadInput(f"{flag} {path}: name an HTML file")
    if usable(path, flag).is_dir():
        raise BadInput(f"{flag} {path}: is a folder; name an HTML file in it")
    try:
        tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part").close()
    except OSError as error:
        raise BadInput(
            f"{flag} {path}: cannot be written ({error.strerror}); name a file in a folder that exists"
        ) from None
    return path


def write_report(parts: Platform, delivery_id: str, path: Path) -> bool:
    """Put the report of a delivery on this home in place, verified just now; returns whether it verifies."""
    from human_arm.report import render_report

    ledger = parts.ledger
    verification = ledger.verify(delivery_id, parts.identities.get(PLATFORM).public_key)
    entries, checkpoints = ledger.record(delivery_id).entries, ledger.checkpoints(delivery_id)
    _write(path, render_report(entries, checkpoints, verification))
    return verification.verified


def write_report_of_export(export: Path, checkpoint: Path | None, key: Path | None, path: Path) -> bool:
    """As `write_report`, from an export file and what lies beside it. Raises BadInput."""
    from human_arm.report import render_report

    lines, checkpoints, public_key = read_export(export, checkpoint, key)
    entries = parse_entries(lines, str(export))
    verification = verify(lines, checkpoints, public_key)
    try:
        page = render_report(entries, checkpoints, verification, key_came_along=key is None)
    except ValueError as error:
        raise BadInput(f"{export}: {error}; export the ledger again") from None
    _write(path, page)
    return verification.verified


def _write(path: Path, page: str) -> None:
    try:
        write_whole(path, page.encode())
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be written ({error.strerror}); `deliveries report` writes it elsewhere"
        ) from None


def link_to(path: Path) -> str:
    """The line that points at a report."""
    return f"report: {path.absolute().as_uri()}"
