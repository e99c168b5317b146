"""The BANKING77 engagement from the published data: splits of real messages, and issues planted from a seed.

Not a profiler: it lists what it planted. What the train file holds by nature (repeats, a contradicting label,
messages close to a test message) stays in the public rows, left for others to find.
"""

import hashlib
import hmac
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from delivery_plane.errors import BadInput
from delivery_plane.rows import normalised
from delivery_plane.scenario import Row
from scenarios.banking77.data import Message, read
from scenarios.banking77.planting import recased, repunctuated, with_identifier

LICENCE, SOURCE = "cc-by-4.0", "banking77"
VENDOR_LICENCE, VENDOR_SOURCE = "vendor-evaluation-only", "vendor-sample"
PROBE_ROWS, DEV_ROWS, SEALED_ROWS = 128, 300, 616
PLANTED_ROWS = {
    "duplicates": 120,  # the repeats only; the first occurrence is a clean row
    "conflicting_labels": 60,  # every row taking part: 30 prompts, each with two answers
    "unlicensed_rows": 220,
    "pii": 80,
    "sealed_overlap": 40,
}
LEAST_CLEAN_ROWS = 500
"""Source: chosen; the published file leaves some nine thousand."""
SEALED_STREAM = b"banking77/v1/sealed"
OVERLAP_STREAM = b"banking77/v1/overlap"


class Drop(NamedTuple):
    """All rows of one drop; `planted` maps each issue to the ids of its public rows."""

    public: list[Row]
    probe: list[Row]
    dev: list[Row]
    sealed: list[Row]
    planted: dict[str, list[str]]


def generate(public_seed: int, sealed_key: bytes, folder: Path) -> Drop:
    """All rows of one drop, from the published files in `folder`. Raises BadInput when they do not serve.

    `public_seed` fixes public, probe and dev, which come from the train file; `sealed_key` fixes sealed, which
    comes from the test file, and the public rows that overlap it. Every planted row is in one issue only.
    """
    data = read(folder)
    rng = random.Random(public_seed)
    # No train message that is any test message too: what the public rows are must not tell what is sealed.
    tested = {normalised(message.text) for message in data.test}
    pool = [message for message in data.train if normalised(message.text) not in tested]
    unique = _unique(pool)
    once = set(unique)
    repeated = [message for message in pool if message not in once]

    probe, unique = _balanced(unique, PROBE_ROWS, data.intents, rng, folder / "train.csv")
    dev, unique = _balanced(unique, DEV_ROWS, data.intents, rng, folder / "train.csv")
    rng.shuffle(unique)
    if len(unique) < LEAST_CLEAN_ROWS + sum(PLANTED_ROWS.values()):
        raise BadInput(f"{folder / 'train.csv'}: {len(unique)} messages are left to train on, too few")
    vendor = [unique.pop() for _ in range(PLANTED_ROWS["unlicensed_rows"])]
    personal = [unique.pop() for _ in range(PLANTED_ROWS["pii"])]
    disputed = [unique.pop() for _ in range(PLANTED_ROWS["conflicting_labels"] // 2)]
    originals = [_row(message) for message in unique]
    again = rng.sample(originals, PLANTED_ROWS["duplicates"])

    sealed, _ = _balanced(
        _unique(data.test), SEALED_ROWS, data.intents, _stream(sealed_key, SEALED_STREAM), folder / "test.csv"
    )
    issues = {
        "duplicates": [_repeat(row, rng if copied % 2 else None) for copied, row in enumerate(again)],
        "conflicting_labels": [row for message in disputed for row in _both_ways(message, data.intents, rng)],
        "unlicensed_rows": [_row(message, VENDOR_LICENCE, VENDOR_SOURCE) for message in vendor],
        "pii": [_row(Message(with_identifier(message.text, rng), message.intent)) for message in personal],
        "sealed_overlap": _overlapping(sealed, _stream(sealed_key, OVERLAP_STREAM)),
    }
    public = (
        originals
        + [_row(message) for message in repeated]
        + [row for rows in issues.values() for row in rows]
    )
    rng.shuffle(public)
    place = {id(row): at for at, row in enumerate(public)}
    for original, repeat in zip(again, issues["duplicates"], strict=True):
        first, second = sorted((place[id(original)], place[id(repeat)]))
        public[first], public[second] = original, repeat
    _number(public, "r")
    return Drop(
        public=public,
        probe=_number([_row(message) for message in probe], "p"),
        dev=_number([_row(message) for message in dev], "d"),
        sealed=_number([_row(message) for message in sealed], "s"),
        planted={kind: sorted(row["row_id"] for row in rows) for kind, rows in issues.items()},
    )


def _row(message: Message, licence: str = LICENCE, source: str = SOURCE) -> Row:
    return Row(row_id="", prompt=message.text, answer=message.intent, licence=licence, source=source)


def _repeat(row: Row, rng: random.Random | None) -> Row:
    """The row again; with a generator, its words in another case or spacing."""
    return _row(Message(recased(row["prompt"], rng) if rng else row["prompt"], row["answer"]))


def _both_ways(message: Message, intents: tuple[str, ...], rng: random.Random) -> tuple[Row, Row]:
    """The message under its intent and under another."""
    other = rng.choice([intent for intent in intents if intent != message.intent])
    return _row(message), _row(Message(message.text, other))


def _number(rows: list[Row], letter: str) -> list[Row]:
    for position, row in enumerate(rows, start=1):
        row["row_id"] = f"{letter}{position:05d}"
    return rows


def _stream(key: bytes, name: bytes) -> random.Random:
    return random.Random(int.from_bytes(hmac.new(key, name, hashlib.sha256).digest(), "big"))


def _unique(messages: Iterable[Message]) -> list[Message]:
    """Messages whose words occur once, so that holding one out takes all of it out and its intent is certain."""
    by_words = defaultdict(list)
    for message in messages:
        by_words[normalised(message.text)].append(message)
    return [same[0] for same in by_words.values() if len(same) == 1]


def _balanced(
    messages: list[Message], count: int, intents: tuple[str, ...], rng: random.Random, path: Path
) -> tuple[list[Message], list[Message]]:
    """`count` messages, as many of each intent as of any other or one less, in random order; and those left.

    Raises BadInput when an intent has too few.
    """
    whole, rest = divmod(count, len(intents))
    more = set(rng.sample(intents, rest))
    by_intent = defaultdict(list)
    for message in messages:
        by_intent[message.intent].append(message)
    drawn: list[Message] = []
    for intent in intents:
        needed, there = whole + (intent in more), by_intent[intent]
        if len(there) < needed:
            raise BadInput(
                f"{path}: {len(there)} different messages of category {intent!r}, {needed} are needed"
            )
        drawn += rng.sample(there, needed)
    rng.shuffle(drawn)
    taken = set(drawn)
    return drawn, [message for message in messages if message not in taken]


def _overlapping(sealed: list[Message], rng: random.Random) -> list[Row]:
    """Copies of sealed messages, every other one with another ending."""
    copied = rng.sample(sealed, PLANTED_ROWS["sealed_overlap"])
    return [
        _row(Message(message.text if at % 2 == 0 else repunctuated(message.text, rng), message.intent))
        for at, message in enumerate(copied)
    ]
