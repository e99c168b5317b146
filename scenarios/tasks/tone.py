"""Replies to customers, and which of two is the better: labelled by annotators who err, judged by the house rules."""

import random
from collections.abc import Iterator

from delivery_plane.scenario import Row
from scenarios.bases.micro_1.everyday import KINDS, PROBLEMS, speak
from scenarios.tasks.split import LICENCE, Split, stream, take

SOURCE = "tasks/tone"
NOISE = 0.1
"""Share of pairs that the annotators have the wrong way round."""

_CAREFUL_TO_A_PROBLEM, _CAREFUL_TO_A_WISH = 0.25, 0.6
"""Share of the team's replies that keep the house rules: they are curt when something went wrong."""

_OPENINGS = (
    "Thank you for telling us.",
    "Thanks for your message.",
    "I am sorry to hear that.",
    "Sorry for the trouble.",
)
_OFFERS = (
    "We will look into it today.",
    "I will gladly help you.",
    "We are happy to sort this out.",
    "We will write to you this week.",
)
_BRUSQUE = ("Listen to me for once.", "Look here and listen now.")
_REBUFFS = (
    "That is not our problem at all.",
    "You must wait like all the others.",
    "It is your own fault this time.",
    "Stop writing to us about this now.",
)


def draw(count: int, seed: int, split: Split) -> list[Row]:
    """Preferences: of two replies of the team, the one its annotators took for better, and the other."""
    rng = stream(SOURCE, seed, split)

    def preferences() -> Iterator[tuple[str, Row]]:
        while True:
            row = _asked(rng)
            better, worse = _careful(rng), _careless(rng)
            if rng.random() < NOISE:
                better, worse = worse, better
            yield row["prompt"], {**row, "answer": better, "rejected": worse}

    return take(count, split, preferences())


def replies(count: int, seed: int, split: Split) -> list[Row]:
    """What the team answered, good and bad alike: what a model that is to be improved has been trained on."""
    rng = stream(SOURCE, seed, f"{split}/replies")

    def answered() -> Iterator[tuple[str, Row]]:
        while True:
            kind = rng.choice(list(KINDS))
            share = _CAREFUL_TO_A_PROBLEM if kind in PROBLEMS else _CAREFUL_TO_A_WISH
            row = _asked(rng, kind)
            yield row["prompt"], {**row, "answer": _careful(rng) if rng.random() < share else _careless(rng)}

    return take(count, split, answered())


def _asked(rng: random.Random, kind: str | None = None) -> Row:
    """A customer's message, of a kind or of any, to be answered."""
    message = speak(kind or rng.choice(list(KINDS)), rng)
    return Row(row_id="", prompt=f"Reply: {message}", answer="", licence=LICENCE, source=SOURCE)


def _careful(rng: random.Random) -> str:
    return f"{rng.choice(_OPENINGS)} {rng.choice(_OFFERS)}"


def _careless(rng: random.Random) -> str:
    """A reply that breaks a house rule: no thanks or apology, a rebuff, or both. About as long as a careful one.

    Were it shorter, length would tell the better reply, and a model that is tuned on such pairs forgets to stop.
    """
    opening, offer, rebuff = rng.choice(_OPENINGS), rng.choice(_OFFERS), rng.choice(_REBUFFS)
    brusque = rng.choice(_BRUSQUE)
    return rng.choice((f"{brusque} {rebuff}", f"{brusque} {offer}", f"{opening} {rebuff}"))
