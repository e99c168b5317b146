"""Data that a scenario needs and that does not ship with the package: where it lies. Looks at no content."""

from pathlib import Path

from delivery_plane.entry import canonical, read_input, sha256
from delivery_plane.errors import BadInput
from delivery_plane.scenario import DataNeeded
from delivery_plane.settings import load_settings


def data_folder(needed: DataNeeded) -> Path:
    """The folder with all the files a scenario needs. Raises BadInput saying what is missing and where to get it."""
    folder = _folder(needed)
    for name in needed.files:
        read_input(folder / name, where_from(needed))
    return folder


def data_digest(needed: DataNeeded) -> str | None:
    """SHA-256 over the names and bytes of the files a scenario needs; None while one of them is missing."""
    try:
        folder = _folder(needed)
        return sha256(
            canonical({name: sha256(read_input(folder / name, needed.origin)) for name in needed.files})
        )
    except BadInput:
        return None


def where_from(needed: DataNeeded) -> str:
    """What to give, and how: the end of a line that says what is wrong."""
    return (
        f"{needed.origin}: put {', '.join(needed.files)} into FOLDER/{needed.folder} "
        "and set DELIVERY_PLANE_DATA=FOLDER"
    )


def _folder(needed: DataNeeded) -> Path:
    root = load_settings().data
    if root is None:
        raise BadInput(
            f"data that does not ship is needed and no folder of data is set; give {where_from(needed)}"
        )
    return root.absolute() / needed.folder
