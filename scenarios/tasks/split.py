"""Splits that are apart by construction: what a row asks decides its side. Draws nothing itself."""

import hashlib
import random
from collections.abc import Iterable
from typing import Literal

from delivery_plane.errors import BadInput
from delivery_plane.scenario import Row

Split = Literal["train", "probe", "test"]

LICENCE = "Apache-2.0"
"""Of rows that generators write, this package's and reasoning-gym's."""

_TEST, _PROBE, _PARTS = 4, 2, 16
_ENOUGH = 10_000
"""Draws in a row that may bring nothing new before a task counts as used up."""


def split_of(asked: str) -> Split:
    """The side of what is asked: by its digest, a quarter is for the test and an eighth for probes."""
    part = hashlib.sha256(asked.encode()).digest()[0] % _PARTS
    return "test" if part < _TEST else "probe" if part < _TEST + _PROBE else "train"


def stream(source: str, seed: int, name: str) -> random.Random:
    """The chance of one draw: the same arguments give the same rows everywhere."""
    return random.Random(f"{source}/{seed}/{name}")


def take(count: int, split: Split, drawn: Iterable[tuple[str, Row]]) -> list[Row]:
    """The first `count` different rows of a split, numbered; `drawn` yields what is asked, and the row.

    Rows that ask the same, worded differently, fall on the same side. Raises BadInput when the task has too few.
    """
    rows: dict[tuple[str, ...], Row] = {}
    idle = 0
    for asked, row in drawn:
        if len(rows) == count or idle > _ENOUGH:
            break
        before = len(rows)
        if split_of(asked) == split:
            rows.setdefault((row["prompt"], *row.get("turns", []), row["answer"]), row)
        idle = 0 if len(rows) > before else idle + 1
    if len(rows) < count:
        raise BadInput(f"{count} rows are asked for, the {split} split has {len(rows)}; ask for fewer")
    return numbered(rows.values(), split)


def numbered(rows: Iterable[Row], split: Split) -> list[Row]:
    """The rows with ids, counted from 1."""
    return [{**row, "row_id": f"{split}-{place:05d}"} for place, row in enumerate(rows, start=1)]
