"""Planted faults, by name: what each changes in a job's training rows. Nothing recorded of the plan changes."""

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from delivery_plane.errors import BadInput
from delivery_plane.scenario import Row


def _label_shuffle(rows: list[Row], seed: int) -> list[Row]:
    """Each row's answer replaced by a uniform draw from the distinct answers: nothing is left to learn."""
    draw = random.Random(f"label-shuffle:{seed}")
    answers = sorted({row["answer"] for row in rows})
    return [{**row, "answer": draw.choice(answers)} for row in rows]


FAULTS: Mapping[str, Callable[[list[Row], int], list[Row]]] = MappingProxyType(
    {
        "label-shuffle": _label_shuffle,
    }
)


def known_faults() -> tuple[str, ...]:
    """Names of the faults that can be planted."""
    return tuple(FAULTS)


def check_fault(name: str | None) -> None:
    """Raise BadInput if `name` is no known fault."""
    if name is not None and name not in FAULTS:
        raise BadInput(f"fault {name!r}: no such fault; known: {', '.join(known_faults())}")


def planted(name: str | None, rows: list[Row], seed: int) -> list[Row]:
    """The rows a job really trains on. Raises BadInput for an unknown fault."""
    check_fault(name)
    return rows if name is None else FAULTS[name](rows, seed)
