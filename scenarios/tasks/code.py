"""One-line Python functions of kinds the embedded base has not seen, each with tests that a wrong one fails."""

from collections.abc import Callable, Iterator

from delivery_plane.scenario import Row
from scenarios.tasks.split import LICENCE, Split, stream, take

SOURCE = "tasks/code"

_NAMES = ("f", "g", "h", "run", "solve", "step", "work")
_LEADS = ("Write a Python function {} that {}.", "Python: {} {}.", "Code {}: it {}.")
_MOST = 40

Numbers = Callable[[int], list[object]]
"""What a function is tried on, given the number it is about."""


def _near(n: int) -> list[object]:
    return [0, 1, n - 1, n, n + 1, -n, 2 * n, 3 * n + 1]


def _lists(n: int) -> list[object]:
    return [[], [n], [n, n, 1], [1, 2, 3], [n, -n, n + 1, 0], list(range(n + 2))]


def _texts(n: int) -> list[object]:
    return ["", "a", "Ab c", "b" * n, "b" * (n + 1), "two words"]


# What it does, the expression over x and n, and what it is tried on.
_KINDS: tuple[tuple[str, str, Numbers], ...] = (
    ("tells if x is under {n}", "x < {n}", _near),
    ("tells if x is not {n}", "x != {n}", _near),
    ("takes x from {n}", "{n} - x", _near),
    ("doubles x and adds {n}", "x * 2 + {n}", _near),
    ("gives x but at least {n}", "max(x, {n})", _near),
    ("gives x but at most {n}", "min(x, {n})", _near),
    ("gives the rest of x by {n}", "x % {n}", _near),
    ("drops the first {n} of x", "x[{n}:]", _lists),
    ("tells if {n} is in the list x", "{n} in x", _lists),
    ("counts {n} in the list x", "x.count({n})", _lists),
    ("adds {n} to the end of the list x", "x + [{n}]", _lists),
    ("tells if the text x is over {n} long", "len(x) > {n}", _texts),
    ("gives the words of the text x", "x.split()", _texts),
    ("turns the text x into capitals", "x.upper()", _texts),
)


def draw(count: int, seed: int, split: Split) -> list[Row]:
    """Functions to write; `tests` compares with what the right one returns."""
    rng = stream(SOURCE, seed, split)

    def functions() -> Iterator[tuple[str, Row]]:
        while True:
            n, name = rng.randint(2, _MOST), rng.choice(_NAMES)
            does, expression, tried = rng.choice(_KINDS)
            asked = does.format(n=n)
            row = Row(
                row_id="",
                prompt=rng.choice(_LEADS).format(name, asked),
                answer=f"def {name}(x):\n    return {expression.format(n=n)}",
                licence=LICENCE,
                source=SOURCE,
                tests=_tests(name, expression.format(n=n), tried(n)),
            )
            # Under another name, or worded differently, the same is asked.
            yield asked, row

    return take(count, split, functions())


def _tests(name: str, expression: str, tried: list[object]) -> str:
    right: Callable[[object], object] = eval(f"lambda x: {expression}")  # one of ours, from above
    return "\n".join(f"assert {name}({x!r}) == {right(x)!r}" for x in tried)
