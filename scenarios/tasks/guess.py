"""Guess a number in three turns, told higher or lower: games to play, and a warm-up that knows no strategy."""

import itertools
from collections.abc import Iterator

from delivery_plane.compute.environments import MAX_TURNS
from delivery_plane.scenario import Row
from scenarios.tasks.split import LICENCE, Split, numbered, split_of, stream, take

SOURCE = "tasks/guess"
NUMBERS = 7
"""Numbers in a range: just so many that the middle, and the middle of what is left, finds each in three guesses."""

COUNTED_UP = 0.3
"""Share of the warm-up's guesses that are the lowest possible number; the others are drawn evenly."""

_LOWEST = tuple(range(11, 100, 10))
"""From 11 to 17 up to 91 to 97, in every split. A base that copies badly names the numbers of a range it has never
played wrongly, and that would be measured instead of how it plays."""

_OPENINGS = ("", "Hi. ", "Hello! ", "Good evening. ", "A game: ", "Please play. ")
_PHRASES = (
    "Guess my number from {} to {}.",
    "My number is from {} to {}. Guess it.",
    "I think of a number from {} to {}.",
    "Find my number, from {} to {}.",
)


def prompts(split: Split) -> list[tuple[int, str]]:
    """What opens the games of a split, with the lowest number of the range: in no other split are these words."""
    worded = (
        (low, opening + phrase.format(low, low + NUMBERS - 1))
        for low, opening, phrase in itertools.product(_LOWEST, _OPENINGS, _PHRASES)
    )
    return [(low, prompt) for low, prompt in worded if split_of(prompt) == split]


def draw(count: int, seed: int, split: Split) -> list[Row]:
    """Games, prompt by prompt, each number of its range hidden once; the answer is the hidden number."""
    order = prompts(split)
    stream(SOURCE, seed, split).shuffle(order)
    games = (
        (prompt, _row(prompt, [], hidden)) for low, prompt in order for hidden in range(low, low + NUMBERS)
    )
    return take(count, split, games)


def warm_up(count: int, seed: int) -> list[Row]:
    """Turns of games by players without a strategy: they guess anything still possible, or count up from the lowest."""
    rng = stream(SOURCE, seed, "warm-up")

    opened = prompts("train")

    def turns() -> Iterator[Row]:
        while True:
            low, prompt = rng.choice(opened)
            high = low + NUMBERS - 1
            hidden = rng.randint(low, high)
            said: list[str] = []
            for _ in range(MAX_TURNS):
                guessed = low if rng.random() < COUNTED_UP else rng.randint(low, high)
                yield _row(prompt, said, guessed)
                if guessed == hidden:
                    break
                said = [*said, str(guessed), "higher" if hidden > guessed else "lower"]
                low, high = (guessed + 1, high) if hidden > guessed else (low, guessed - 1)

    # Not `take`: what is guessed often is to stand there often.
    return numbered(itertools.islice(turns(), count), "train")


def _row(prompt: str, said: list[str], answer: int) -> Row:
    row = Row(row_id="", prompt=prompt, answer=str(answer), licence=LICENCE, source=SOURCE)
    return {**row, "turns": said} if said else row
