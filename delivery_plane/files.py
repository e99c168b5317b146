"""Files that are there whole or not at all, whoever else writes and whenever the power goes; and room for them."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOM_BYTES = 64 << 20
"""Free space below which no step begins: what the database, the server and the logs need to go on meanwhile."""


def lacks_room(folder: Path) -> str | None:
    """Why nothing more should be written under `folder`: its disk is (almost) full or read-only. Else None."""
    found = os.statvfs(folder)
    if found.f_flag & os.ST_RDONLY:
        return f"the disk of {folder} is read-only"
    free = found.f_bavail * found.f_frsize
    if free < ROOM_BYTES:
        return (
            f"no space left on the disk of {folder}: {free >> 20} MiB are free, {ROOM_BYTES >> 20} are needed"
        )
    return None


@contextlib.contextmanager
def _aside(path: Path, data: bytes) -> Iterator[Path]:
    """A synced file with `data` in the folder of `path`, under a name of its own (mode 0600); removed after."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield Path(name)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` in place of whatever `path` holds. Raises OSError; what was there then stays."""
    with _aside(path, data) as aside:
        aside.replace(path)


def write_once(path: Path, data: bytes) -> bool:
    """Make `path` with `data`, unless it exists: then False. Of many that try at once, one succeeds."""
    with _aside(path, data) as aside:
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
    return True
