"""Guess a number in three turns, told higher or lower: games to play, and a warm-up that knows no strategy."""

from collections.abc import Iterator

from delivery_plane.compute.environments import MAX_TURNS
from delivery_plane.scenario import Row
from scenarios.tasks.split import LICENCE, Split, split_of, stream, take

SOURCE = "tasks/guess"
NUMBERS = 7
"""Numbers in a range: just so many that the middle, and the middle of what is left, finds each in three guesses."""

_LOWEST = tuple(range(101, 1000, 10))
"""From 101 to 107 up to 991 to 997: many, so that numbers of a range never seen are named by looking at the prompt."""

_PHRASES = (
    "Guess my number from {} to {}.",
    "My number is from {} to {}. Guess it.",
    "I think of a number from {} to {}.",
    "Find my number, from {} to {}.",
)


def ranges(split: Split) -> list[int]:
    """The lowest numbers of a split's ranges: a range is played in one split only."""
    return [low for low in _LOWEST if split_of(_asked(low)) == split]


def draw(count: int, seed: int, split: Split) -> list[Row]:
    """Games, range by range, each of its numbers hidden once under one wording; the answer is the hidden number."""
    rng = stream(SOURCE, seed, split)

    def games() -> Iterator[tuple[str, Row]]:
        while True:
            lows = ranges(split)
            rng.shuffle(lows)
            for low in lows:
                prompt = rng.choice(_PHRASES).format(low, low + NUMBERS - 1)
                for hidden in range(low, low + NUMBERS):
                    yield _asked(low), _row(prompt, [], hidden)

    return take(count, split, games())


def warm_up(count: int, seed: int) -> list[Row]:
    """Turns of games played by chance: guesses drawn evenly from what is still possible, which no strategy would do."""
    rng = stream(SOURCE, seed, "warm-up")

    def turns() -> Iterator[tuple[str, Row]]:
        while True:
            lowest = rng.choice(ranges("train"))
            low, high = lowest, lowest + NUMBERS - 1
            prompt, hidden = rng.choice(_PHRASES).format(low, high), rng.randint(low, high)
            said: list[str] = []
            for _ in range(MAX_TURNS):
                guessed = rng.randint(low, high)
                yield _asked(lowest), _row(prompt, said, guessed)
                if guessed == hidden:
                    break
                said = [*said, str(guessed), "higher" if hidden > guessed else "lower"]
                low, high = (guessed + 1, high) if hidden > guessed else (low, guessed - 1)

    return take(count, "train", turns())


def _asked(low: int) -> str:
    return f"{low} to {low + NUMBERS - 1}"


def _row(prompt: str, said: list[str], answer: int) -> Row:
    row = Row(row_id="", prompt=prompt, answer=str(answer), licence=LICENCE, source=SOURCE)
    return {**row, "turns": said} if said else row
