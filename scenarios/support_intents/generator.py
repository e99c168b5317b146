"""Seeded generator of the Tidewell Parcels drop: public, probe, dev and sealed rows with planted issues.

Not a profiler: it lists what it planted and leaves finding it to others.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import re
from collections.abc import Callable
from typing import NamedTuple, TypedDict

from scenarios.support_intents.fillers import CLOSERS, CONTEXTS, OPENERS, SLOTS
from scenarios.support_intents.phrases import INTENTS
from scenarios.support_intents.vague import VAGUE

LABELS: tuple[str, ...] = tuple(sorted(INTENTS))
INSTRUCTION = "Which intent?"
PERMITTED_LICENCES: tuple[str, ...] = ("customer-owned", "cc-by-4.0")
VENDOR_LICENCE = "vendor-evaluation-only"
CLEAN_ROWS, PROBE_ROWS, DEV_ROWS, SEALED_ROWS = 2080, 64, 300, 500
PLANTED_ROWS = {
    "duplicates": 120,  # the repeats only; the first occurrence is a clean row
    "conflicting_labels": 60,  # every row taking part: 30 prompts, each with two answers
    "unlicensed_rows": 220,
    "pii": 80,
    "sealed_overlap": 40,
}
SEALED_STREAM = b"support-intents/v1/sealed"
OVERLAP_STREAM = b"support-intents/v1/overlap"
VAGUE_RATE = 0.06
MISFILED_RATE = 0.01


class Row(TypedDict):
    row_id: str
    prompt: str
    answer: str
    licence: str
    source: str


class Drop(NamedTuple):
    public: list[Row]
    probe: list[Row]
    dev: list[Row]
    sealed: list[Row]
    planted: dict[str, list[str]]


_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_NOT_WORD = re.compile(r"[^a-z0-9]+")


def normalise(text: str) -> str:
    """Lower-case letters and digits with single spaces: what case and punctuation changes cannot alter."""
    return _NOT_WORD.sub(" ", text.lower()).strip()


def expand(template: str, rng: random.Random) -> str:
    """One random string of the grammar; slots may hold further slots and alternatives."""
    text = template
    while True:
        if match := _INNERMOST.search(text):
            filler = rng.choice(match.group(1).split("|"))
        elif match := _SLOT.search(text):
            filler = f"[{SLOTS[match.group(1)]}]"
        else:
            return " ".join(text.split()).replace(" ,", ",").strip(" ,")
        text = text[: match.start()] + filler + text[match.end() :]


def _is_sealed_side(prompt: str) -> bool:
    # Splitting the prompt space by a digest keeps the two sides disjoint; neither stream sees the other.
    return hashlib.sha256(normalise(prompt).encode()).digest()[0] % 3 == 0


def _mistype(text: str, rng: random.Random) -> str:
    spots = [i for i in range(1, len(text) - 2) if text[i].isalpha() and text[i + 1].isalpha()]
    if not spots:
        return text
    i = rng.choice(spots)
    kind = rng.randrange(3)
    if kind == 0:
        return text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    return text[:i] + text[i + 1 :] if kind == 1 else text[:i] + text[i] + text[i:]


def _message(label: str, rng: random.Random) -> str:
    vague = [frames for pair, frames in VAGUE if label in pair]
    is_vague = bool(vague) and rng.random() < VAGUE_RATE
    core = expand(rng.choice(rng.choice(vague) if is_vague else INTENTS[label]), rng)
    parts = [core + rng.choice(["?", "", ".", ".", "!"])]
    if rng.random() < 0.15:
        parts.insert(rng.randrange(2), expand(f"[{CONTEXTS}]", rng) + ".")
    if rng.random() < 0.35:
        parts.insert(0, expand(f"[{OPENERS}]", rng) + rng.choice([",", ".", "!"]))
    if rng.random() < 0.2:
        parts.append(expand(f"[{CLOSERS}]", rng) + rng.choice(["", ".", "!"]))
    text = " ".join(parts)
    if rng.random() < 0.6:
        text = re.sub(r"(^|[.!?] )([a-z])", lambda m: m.group(1) + m.group(2).upper(), text)
    elif rng.random() < 0.3:
        text = text.lower()
    return _mistype(text, rng) if rng.random() < 0.08 else text


def _prompt(message: str) -> str:
    return f"{INSTRUCTION} {message}"


def _row(prompt: str, answer: str, licence: str, source: str) -> Row:
    return Row(row_id="", prompt=prompt, answer=answer, licence=licence, source=source)


def _licensed(prompt: str, answer: str, rng: random.Random) -> Row:
    if rng.random() < 0.7:
        return _row(prompt, answer, "customer-owned", "helpdesk-export")
    return _row(prompt, answer, "cc-by-4.0", "open-phrases")


def _balanced_labels(count: int, rng: random.Random) -> list[str]:
    whole, rest = divmod(count, len(LABELS))
    labels = list(LABELS) * whole + rng.sample(LABELS, rest)
    rng.shuffle(labels)
    return labels


def _draw(
    count: int,
    rng: random.Random,
    seen: set[str],
    sealed_side: bool,
    decorate: Callable[[str], str] = lambda message: message,
) -> list[tuple[str, str]]:
    """Label-balanced (prompt, answer) pairs, new to `seen` and all on one side of the prompt space."""
    pairs: list[tuple[str, str]] = []
    for label in _balanced_labels(count, rng):
        written_for = rng.choice(LABELS) if rng.random() < MISFILED_RATE else label
        while True:
            prompt = _prompt(decorate(_message(written_for, rng)))
            key = normalise(prompt)
            if key not in seen and _is_sealed_side(prompt) == sealed_side:
                break
        seen.add(key)
        pairs.append((prompt, label))
    return pairs


def _luhn_digit(digits: str) -> str:
    total = 0
    for i, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if i % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    return str(-total % 10)


def _with_pii(message: str, rng: random.Random) -> str:
    """The message plus one made-up identifier from ranges reserved for examples and tests."""
    kind = rng.randrange(3)
    if kind == 0:
        first, last = (
            rng.choice(["ana", "bo", "kim", "lee", "max", "ivy"]),
            rng.choice(["hart", "moss", "pike", "wren"]),
        )
        detail = f"{first}.{last}{rng.randrange(10, 99)}@example.{rng.choice(['com', 'org', 'net'])}"
        return f"{message} {rng.choice(['Mail me at', 'My mail is', 'Write to'])} {detail}"
    if kind == 1:
        phone = rng.choice([f"07700 900{rng.randrange(1000):03d}", f"+44 7700 900{rng.randrange(1000):03d}"])
        return f"{message} {rng.choice(['Call me on', 'My phone is', 'Ring'])} {phone}"
    stem = rng.choice(["400000", "555555"]) + "".join(str(rng.randrange(10)) for _ in range(9))
    card = stem + _luhn_digit(stem)
    if rng.random() < 0.5:
        card = " ".join(card[i : i + 4] for i in range(0, 16, 4))
    return f"{message} {rng.choice(['My card is', 'I paid with card', 'Card number'])} {card}"


def _recased(prompt: str, rng: random.Random) -> str:
    """The same words after the instruction in another case or spacing; never the same string."""
    message = prompt.removeprefix(INSTRUCTION + " ")
    options = [message.upper(), message.lower(), message.replace(" ", "  ", 1), message + " "]
    return _prompt(rng.choice([o for o in options if o != message]))


def _repunctuated(prompt: str, rng: random.Random) -> str:
    message = prompt.removeprefix(INSTRUCTION + " ")
    options = [
        message.lower(),
        message.rstrip(".!?") + " ...",
        message.replace(",", ""),
        message.rstrip(".!?") + "!!",
    ]
    return _prompt(rng.choice([o for o in options if o != message]))


def _stream(key: bytes, name: bytes) -> random.Random:
    return random.Random(int.from_bytes(hmac.new(key, name, hashlib.sha256).digest(), "big"))


def _sealed_rows(sealed_key: bytes) -> list[Row]:
    rng = _stream(sealed_key, SEALED_STREAM)
    pairs = _draw(SEALED_ROWS, rng, set(), sealed_side=True)
    return [_row(prompt, answer, "customer-owned", "sealed-holdout") for prompt, answer in pairs]


def _overlap_rows(sealed: list[Row], sealed_key: bytes) -> list[Row]:
    rng = _stream(sealed_key, OVERLAP_STREAM)
    rows = []
    for copied, row in enumerate(rng.sample(sealed, PLANTED_ROWS["sealed_overlap"])):
        prompt = row["prompt"] if copied % 2 == 0 else _repunctuated(row["prompt"], rng)
        rows.append(_licensed(prompt, row["answer"], rng))
    return rows


def _numbered(rows: list[Row], letter: str) -> list[Row]:
    for position, row in enumerate(rows, start=1):
        row["row_id"] = f"{letter}{position:04d}"
    return rows


def generate(public_seed: int, sealed_key: bytes) -> Drop:
    """All rows of one drop.

    `public_seed` fixes public, probe and dev; `sealed_key` fixes sealed and the public rows that overlap it.
    `planted` maps each issue to the ids of its rows, every row in at most one issue: `duplicates` lists the
    later repeats only, `conflicting_labels` lists every row of each conflicting pair.
    """
    rng = random.Random(public_seed)
    seen: set[str] = set()

    def draw(count: int, decorate: Callable[[str], str] = lambda message: message) -> list[tuple[str, str]]:
        return _draw(count, rng, seen, sealed_side=False, decorate=decorate)

    probe = [_licensed(*pair, rng) for pair in draw(PROBE_ROWS)]
    dev = [_licensed(*pair, rng) for pair in draw(DEV_ROWS)]
    clean = [_licensed(*pair, rng) for pair in draw(CLEAN_ROWS)]
    unlicensed = [
        _row(*pair, VENDOR_LICENCE, "vendor-sample") for pair in draw(PLANTED_ROWS["unlicensed_rows"])
    ]
    pii = [
        _licensed(*pair, rng) for pair in draw(PLANTED_ROWS["pii"], lambda message: _with_pii(message, rng))
    ]
    conflicting: list[Row] = []
    for prompt, answer in draw(PLANTED_ROWS["conflicting_labels"] // 2):
        other = rng.choice([label for label in LABELS if label != answer])
        conflicting += [_licensed(prompt, answer, rng), _licensed(prompt, other, rng)]
    originals = rng.sample(clean, PLANTED_ROWS["duplicates"])
    duplicates = []
    for copied, row in enumerate(originals):
        prompt = row["prompt"] if copied % 2 == 0 else _recased(row["prompt"], rng)
        duplicates.append(_row(prompt, row["answer"], row["licence"], row["source"]))

    sealed = _sealed_rows(sealed_key)
    overlap = _overlap_rows(sealed, sealed_key)
    issues = {
        "duplicates": duplicates,
        "conflicting_labels": conflicting,
        "unlicensed_rows": unlicensed,
        "pii": pii,
        "sealed_overlap": overlap,
    }
    public = clean + [row for rows in issues.values() for row in rows]
    rng.shuffle(public)
    place = {id(row): i for i, row in enumerate(public)}
    for original, repeat in zip(originals, duplicates, strict=True):
        first, second = sorted((place[id(original)], place[id(repeat)]))
        public[first], public[second] = original, repeat
    _numbered(public, "r")
    return Drop(
        public=public,
        probe=_numbered(probe, "p"),
        dev=_numbered(dev, "d"),
        sealed=_numbered(sealed, "s"),
        planted={kind: sorted(row["row_id"] for row in rows) for kind, rows in issues.items()},
    )
