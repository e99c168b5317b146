"""What a suite asks and how answers are decoded, for every model and on both sides of every comparison. No torch."""

import platform
from importlib.metadata import version
from pathlib import Path

from delivery_plane import __version__
from delivery_plane.compute.graders import unfit
from delivery_plane.compute.local.digests import file_digest
from delivery_plane.compute.plane import Suite
from delivery_plane.entry import canonical, sha256
from delivery_plane.errors import BadInput, one_line
from delivery_plane.rows import read_rows
from delivery_plane.scenario import Metric, Row

BATCH = 50
SPARE_TOKENS = 4
ROOM = 1.5
"""Where a longer answer can be right too, it may have so many times the tokens of the longest right one."""

RULES = {
    "strategy": "greedy",
    "until": "the end-of-turn token of the base's tokenizer",
    "max_new_tokens": f"longest right answer of the file and its end of turn, plus {SPARE_TOKENS}; "
    f"{ROOM} times the answer unless it must be matched exactly or is a turn of a game",
    "longer than the context": "no answer",
    "batch": BATCH,
    "weights": "float32",
}

_SOURCES = (
    "*.py",
    "faults/*.py",
    "recipes/episodes.py",
    "local/decoding.py",
    "local/evaluate.py",
    "local/models.py",
    "local/tokens.py",
    "local/suites/*",
)
"""What decides over an answer or whether it is right, from the compute folder on."""


def asked(suite: Suite) -> list[Row]:
    """The rows a suite asks, in its order. Raises BadInput when there is none, or one that is not there or no use."""
    rows = read_rows(suite.items)
    places = range(len(rows)) if suite.indices is None else suite.indices
    if not places:
        raise BadInput(f"{suite.items}: no item is asked; name at least one")
    for place in places:
        if not 0 <= place < len(rows):
            raise BadInput(f"{suite.items}: item {place} is asked, and it has items 0 to {len(rows) - 1}")
    if len(set(places)) != len(places):
        twice = next(place for place in places if list(places).count(place) > 1)
        raise BadInput(f"{suite.items}: item {twice} is asked twice; name each item once")
    for place in places:
        if why := unfit(suite.metric, rows[place]):
            raise BadInput(
                f"{suite.items}: row {one_line(rows[place]['row_id'], 80)} {why}; {suite.metric} needs that"
            )
    return [rows[place] for place in places]


def new_tokens(metric: Metric, longest: int) -> int:
    """Tokens an answer may have, its end of turn included, where the longest right one has `longest` without it."""
    room = 1.0 if metric in ("exact_match", "game_won") else ROOM
    return int(longest * room) + 1 + SPARE_TOKENS


def decoding_digest() -> str:
    """Digest of the rules above: equal for every evaluation that may be compared."""
    return sha256(canonical(RULES))


def code_version() -> str:
    """Changes whenever the code that answers or judges, or a library under it, does."""
    compute = Path(__file__).parents[1]
    paths = sorted(path for pattern in _SOURCES for path in compute.glob(pattern) if path.is_file())
    sources = {str(path.relative_to(compute)): file_digest(path) for path in paths}
    libraries = {name: version(name) for name in ("torch", "transformers", "peft", "lm_eval", "tokenizers")}
    return sha256(
        canonical(
            {
                "plane": __version__,
                "sources": sources,
                "libraries": libraries,
                "python": platform.python_version(),
            }
        )
    )
