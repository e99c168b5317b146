"""What a policy's turns are met with, and what they earn: programs, so that a reward is a truth. No model, no torch."""

import re
from dataclasses import dataclass
from typing import Protocol

from delivery_plane.compute.graders import grade
from delivery_plane.hyperparameters import EnvironmentName
from delivery_plane.scenario import Metric, Row

MAX_TURNS = 3
"""Guesses allowed; seven numbers can always be found in three."""

_RANGE = re.compile(r"from (\d+) to (\d+)")
_GUESS = re.compile(r"\d{1,6}")


@dataclass(frozen=True)
class Turn:
    """What came of one answer. `reply` None: the episode is over, `reward` is what all of it earned."""

    reply: str | None
    reward: float
    won: bool


class Environment(Protocol):
    """One episode. The policy has been given the row's prompt."""

    def play(self, answer: str) -> Turn:
        """Take the policy's next answer."""
        ...


class OneAnswer:
    """A single answer, judged by the metric: 1 for right, 0 for wrong."""

    def __init__(self, row: Row, metric: Metric) -> None:
        self._row, self._metric = row, metric

    def play(self, answer: str) -> Turn:
        """See Environment."""
        (right,) = grade(self._metric, [self._row], [answer])
        return Turn(None, float(right), right)


class GuessNumber:
    """Find a hidden number in three guesses; after each the environment says `higher` or `lower`.

    Earns 1 less a tenth for each turn after the first when found, nothing when not, -0.5 for an answer that is no
    number.
    """

    def __init__(self, hidden: int) -> None:
        self._hidden, self._turns = hidden, 0

    def play(self, answer: str) -> Turn:
        """See Environment."""
        self._turns += 1
        said = answer.strip()
        if not _GUESS.fullmatch(said):
            return Turn(None, -0.5, False)
        if int(said) == self._hidden:
            return Turn(None, 1.0 - 0.1 * (self._turns - 1), True)
        if self._turns == MAX_TURNS:
            return Turn(None, 0.0, False)
        return Turn("higher" if self._hidden > int(said) else "lower", 0.0, False)


def environment(name: EnvironmentName, row: Row, metric: Metric, place: int | None = None) -> Environment:
    """The environment of one episode.

    `place` is an answer's place in its group while training: a game's hidden number then follows from it, so that every
    group meets every number equally often and a group's rewards differ by how well it was played. Without a place
    (when a model is evaluated) the hidden number is the row's answer.
    """
    if name == "answer":
        return OneAnswer(row, metric)
    if place is None:
        return GuessNumber(int(row["answer"]))
    low, high = map(int, _RANGE.search(row["prompt"]).groups())  # type: ignore[union-attr]
    return GuessNumber(low + place % (high - low + 1))
