"""What commands share: the home folder, the platform on it, and printing."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from rich.console import Console

from delivery_plane.errors import BadInput
from delivery_plane.settings import Home, Settings, load_settings
from workflows.platform import Platform, open_platform

_WIDTH = None if sys.stdout.isatty() else 110
"""Columns when the output is no terminal."""

out = Console(highlight=False, width=_WIDTH)
"""Results."""

progress = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 110)
"""Everything a script does not read."""


def _whole(type_: object, tokens: Sequence[Token]) -> int:  # noqa: ARG001 - what the parser calls it with
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", tokens[0].value):
        raise ValueError("not a whole number")
    return int(tokens[0].value)


Whole = Annotated[int, Parameter(converter=_whole)]
"""A whole number as typed: the parser alone would round 1.5, and read 0x10."""


def say(line: str, console: Console = out) -> None:
    """Text as it is, without markup or wrapping; characters that could steer a terminal are replaced."""
    shown = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in line)
    console.print(shown, markup=False, soft_wrap=True)


def open_home() -> tuple[Settings, Home]:
    """The settings in force and the home folder they name."""
    settings = load_settings()
    return settings, Home(settings.home, settings.database)


def platform() -> Platform:
    """The platform on an existing or new home folder, without a compute plane."""
    return open_platform(open_home()[1])


def usable(path: Path, what: str) -> Path:
    """A path that a person gave, if the system can look it up at all. Raises BadInput."""
    try:
        path.exists()
    except (OSError, ValueError) as error:
        raise BadInput(f"{what} {str(path)[:60]!r}: no usable path ({type(error).__name__})") from None
    return path


def existing_platform() -> Platform:
    """The platform on a home folder that must exist already. Raises BadInput."""
    home = open_home()[1]
    made = home.ledger if isinstance(home.ledger, Path) else home.identities
    if not usable(made, "DELIVERY_PLANE_HOME").exists():
        raise BadInput(f"{home.root}: no ledger here; run a delivery first, or set DELIVERY_PLANE_HOME")
    return open_platform(home)


def moment(recorded: str) -> str:
    """A recorded time as a person reads it: to the second, with the zone that all recorded times have."""
    return f"{recorded[:19].replace('T', ' ')} UTC"


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    # ASCII alone: what is printed is JSON whatever the terminal's encoding, and whatever a file's name is made of.
    json.dump(value, sys.stdout, indent=2)
    print()
