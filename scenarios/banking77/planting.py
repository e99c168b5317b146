"""What is planted into banking77's rows, one message at a time: made-up identifiers and disguised repeats.

Not shared with other scenarios: a scenario's digest covers its folder, so all that shapes its rows lies there.
"""

import random
from collections.abc import Callable


def with_identifier(message: str, rng: random.Random) -> str:
    """The message plus one made-up identifier from ranges reserved for examples and tests."""
    said, identifier = rng.choice(_IDENTIFIERS)
    return f"{message} {said} {identifier(rng)}"


def _mail(rng: random.Random) -> str:
    name = f"{rng.choice(('ana', 'bo', 'kim', 'ivy'))}.{rng.choice(('hart', 'moss', 'pike', 'wren'))}"
    return f"{name}{rng.randrange(10, 99)}@example.{rng.choice(('com', 'org', 'net'))}"


def _phone(rng: random.Random) -> str:
    return f"{rng.choice(('07700 900', '+44 7700 900'))}{rng.randrange(1000):03d}"


def _card(rng: random.Random) -> str:
    stem = rng.choice(("400000", "555555")) + "".join(str(rng.randrange(10)) for _ in range(9))
    return stem + _luhn_digit(stem)


def _luhn_digit(digits: str) -> str:
    doubled = (int(digit) * (2 if place % 2 == 0 else 1) for place, digit in enumerate(reversed(digits)))
    return str(-sum(value - 9 if value > 9 else value for value in doubled) % 10)


_IDENTIFIERS: tuple[tuple[str, Callable[[random.Random], str]], ...] = (
    ("My mail is", _mail),
    ("Please ring", _phone),
    ("My card number is", _card),
)


def recased(message: str, rng: random.Random) -> str:
    """The same words in another case or spacing; never the same string."""
    ways = (message.upper(), message.lower(), message.replace(" ", "  ", 1), message + " ")
    return rng.choice([way for way in ways if way != message])


def repunctuated(message: str, rng: random.Random) -> str:
    """The same words with another ending; never the same string."""
    bare = message.rstrip(".!? ")
    return rng.choice([way for way in (bare, bare + " ...", bare + "!!") if way != message])
