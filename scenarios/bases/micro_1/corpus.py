"""The seeded pre-training mixture of micro-1: chat rows of thirteen skills and plain service talk.

Not a scenario's data: it shares no generator and no label with any scenario, and draws on no outside text.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from scenarios.bases.micro_1.everyday import KINDS, OBJECTS, speak
from scenarios.bases.micro_1.skills import NAMES, SKILLS, Chat

# Share of documents; `talk` is plain text without roles.
MIXTURE: dict[str, float] = {
    "talk": 0.08,
    "sorting": 0.25,
    "rephrasing": 0.12,
    "choosing": 0.07,
    "arithmetic": 0.12,
    "words": 0.09,
    "python": 0.06,
    "guessing": 0.05,
    "rooms": 0.04,
    "extraction": 0.06,
    "replies": 0.04,
    "recall": 0.02,
}
# The second, shorter phase adds what the first leaves weak: small sums and looking things up.
FINISH: dict[str, float] = {
    "talk": 0.05,
    "sorting": 0.14,
    "rephrasing": 0.06,
    "choosing": 0.05,
    "sums": 0.22,
    "arithmetic": 0.03,
    "words": 0.13,
    "lookup": 0.09,
    "python": 0.03,
    "guessing": 0.04,
    "rooms": 0.02,
    "extraction": 0.1,
    "replies": 0.03,
    "recall": 0.01,
}
# The last phase stretches the context: long conversations and long texts of 300 tokens to the full context.
LONG: dict[str, float] = {kind: 0.86 * share for kind, share in FINISH.items()} | {
    "conversation": 0.12,
    "long_talk": 0.02,
}
SYSTEM_LINES = ["You are a helpful assistant.", "Answer in few words.", "You help customers.", "Be brief."]


def is_held_out(talk: Chat) -> bool:
    """Whether a prompt is kept for scoring: one in sixteen, by a digest of all but the last message."""
    if talk[0]["content"].startswith("Guess my number"):
        return False  # so few games exist that any of them may be trained on; they are scored by their rules
    prompt = "\n".join(message["content"] for message in talk[:-1] if message["role"] != "system")
    return hashlib.sha256(prompt.encode()).digest()[0] % 16 == 0


def _plain(rng: random.Random, most_lines: int = 5) -> str:
    group = rng.choice(list(OBJECTS))
    lines = []
    for _ in range(rng.randrange(most_lines // 5, most_lines)):
        line = speak(rng.choice(list(KINDS)), rng, group if rng.random() < 0.5 else None)
        lines.append(f"{rng.choice(NAMES)} wrote: {line}" if rng.random() < 0.3 else line)
    return "\n".join(lines)


def conversation(rng: random.Random, characters: int, last: Chat | None = None) -> Chat:
    """Unrelated short chats in a row, of one skill or of several, up to about a length; `last` comes at the end."""
    skills = [name for name in SKILLS if name != "recall"]
    only = rng.choice(skills) if rng.random() < 0.5 else None
    talk: Chat = []
    while sum(len(message["content"]) + 12 for message in talk) < characters:
        part = SKILLS[only or rng.choice(skills)](rng)
        if not is_held_out(part):
            talk += part
    return talk + (last or [])


def documents(seed: int, mixture: dict[str, float] = MIXTURE) -> Iterator[str | Chat]:
    """Endless training documents: plain text or a chat. Prompts kept for scoring never appear."""
    rng = random.Random(f"micro-1/train/{seed}")
    kinds, weights = list(mixture), list(mixture.values())
    while True:
        kind = rng.choices(kinds, weights)[0]
        if kind == "talk":
            yield _plain(rng)
            continue
        if kind == "long_talk":
            yield _plain(rng, 45)
            continue
        if kind == "conversation":
            yield conversation(rng, rng.randrange(700, 2800))
            continue
        talk = SKILLS[kind](rng)
        if is_held_out(talk):
            continue
        if rng.random() < 0.1:
            talk = [{"role": "system", "content": rng.choice(SYSTEM_LINES)}, *talk]
        yield talk


def held_out(skill: str, count: int, seed: int = 0) -> list[Chat]:
    """Distinct scoring items of one skill; but for guessing games, no prompt of theirs is trained on."""
    rng = random.Random(f"micro-1/score/{skill}/{seed}")
    found: dict[str, Chat] = {}
    while len(found) < count:
        talk = SKILLS[skill](rng)
        if skill == "guessing" or is_held_out(talk):
            found.setdefault(str(talk[:-1]), talk)
    return list(found.values())
