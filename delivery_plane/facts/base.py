"""What every fact shares: frozen, versioned, visible to somebody. No kinds here."""

from enum import StrEnum
from typing import ClassVar

from delivery_plane.delivery import Frozen


class Visibility(StrEnum):
    """Who may read an entry while the delivery is open. The operator reads everything."""

    SEAT = "seat"
    OPERATOR = "operator"


class FactBase(Frozen):
    """Base of all fact kinds. Subclasses set `kind` and `v`; units are in field names."""

    visibility: ClassVar[Visibility] = Visibility.SEAT
    for_oracle: ClassVar[bool] = True
    """False: kept from rules and detector (what fault was planted, for instance)."""

    def key(self) -> str:
        """What tells two facts of one kind apart within one stage visit (a step, a job); part of the
        idempotency key, so a retried activity writes each fact once."""
        return ""


class RowSet(Frozen):
    """Which rows: their number and ids. Never their text."""

    count: int
    row_ids: tuple[str, ...]
