"""Sums and differences of two or three small numbers, drawn by reasoning-gym (`pip install delivery-plane[gym]`)."""

from collections.abc import Iterator
from typing import Any

from delivery_plane.errors import MachineUnfit
from delivery_plane.scenario import Row
from scenarios.tasks.split import LICENCE, Split, stream, take

SOURCE = "reasoning-gym/basic_arithmetic"


def draw(count: int, seed: int, split: Split) -> list[Row]:
    """Questions such as `What is 3 - 5 + 10?`, answered by a number. Raises MachineUnfit without reasoning-gym."""
    questions = _questions(stream(SOURCE, seed, split).getrandbits(48))

    def rows() -> Iterator[tuple[str, Row]]:
        place = 0
        while True:
            found = questions[place]
            row = Row(
                row_id="",
                prompt=found["question"],
                answer=found["answer"],
                licence=LICENCE,
                source=SOURCE,
            )
            # The sum itself, not its wording, decides the split.
            yield found["metadata"]["expression"], row
            place += 1

    return take(count, split, rows())


def _questions(seed: int) -> Any:
    try:
        # Here, not above: it takes three seconds, and may not be installed.
        from reasoning_gym.arithmetic.basic_arithmetic import (
            BasicArithmeticDataset,
            BasicArithmeticDatasetConfig,
        )
    except ImportError:
        raise MachineUnfit(
            "reasoning-gym is not installed; pip install 'delivery-plane[gym]' (it compiles: needs gcc)"
        ) from None
    return BasicArithmeticDataset(
        BasicArithmeticDatasetConfig(
            min_terms=2,
            max_terms=3,
            max_digits=1,
            operators=["+", "-"],
            allow_parentheses=False,
            format_style="natural",
            seed=seed,
        )
    )
