"""How answers are judged right, by program. Generated code runs in a bounded process of its own, never here."""

import re
from collections.abc import Sequence
from decimal import Decimal

from delivery_plane.compute.confined import passed
from delivery_plane.scenario import Metric, Row

FINAL_MARKER = "####"

LONGEST_NUMBER = 64
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")

OPENINGS = ("thank you", "thanks", "many thanks", "sorry", "i am sorry", "we are sorry", "i apologise", "we apologise",
            "my apologies", "our apologies")  # fmt: skip
"""House rule: a reply begins with thanks or an apology."""

CURT_WORDS = frozenset(
    {"anyway", "complain", "complaining", "duh", "fault", "hurry", "impossible", "never", "no", "nonsense", "nope",
     "not", "obviously", "rubbish", "shut", "silly", "stop", "stupid", "wait", "whatever", "wrong"}
)  # fmt: skip
"""House rule: a reply holds none of these words."""

ENDINGS = (".", "?")
"""House rule: a reply ends as a sentence does."""

REPLY_WORDS = (3, 30)
"""House rule: a reply has at least and at most so many words."""

_WORD = re.compile(r"[a-z']+")


def grade(metric: Metric, rows: Sequence[Row], answers: Sequence[str]) -> list[bool]:
    """Whether each answer is right for its row. Raises ValueError for a game: that is judged by playing it."""
    pairs = list(zip(rows, answers, strict=True))
    if metric == "exact_match":
        return [answer.strip() == row["answer"].strip() for row, answer in pairs]
    if metric == "final_number":
        return [_has_final_number(answer, row) for row, answer in pairs]
    if metric == "courteous":
        return [keeps_house_rules(answer) for answer in answers]
    if metric == "tests_pass":
        return passed([(answer, row["tests"]) for row, answer in pairs])
    raise ValueError(f"{metric}: not judged by an answer's text")


def unfit(metric: Metric, row: Row) -> str | None:
    """Why no answer to this row could ever be judged right by the metric; None when one could."""
    if metric == "tests_pass" and not row.get("tests", "").strip():
        return "has no tests"
    if metric == "final_number" and right_number(row) is None:
        return f"its answer has no number after {FINAL_MARKER}, and is none"
    if metric == "game_won" and not re.fullmatch(r"[0-9]{1,6}", row["answer"]):
        return "its answer is not the number to guess"
    if metric == "game_won" and row.get("turns"):
        return "begins in the middle of a game"
    return None


def final_number(text: str) -> Decimal | None:
    """The number that follows the last `####`, thousands commas and a closing full stop aside; None without one."""
    _, marker, after = text.rpartition(FINAL_MARKER)
    return _number(after) if marker else None


def right_number(row: Row) -> Decimal | None:
    """The number a row's answer comes to: a worked solution with `####`, or the number alone."""
    return final_number(row["answer"]) if FINAL_MARKER in row["answer"] else _number(row["answer"])


def keeps_house_rules(reply: str) -> bool:
    """Whether a reply opens, speaks and ends as the house wants it: by words only, case aside."""
    said = reply.strip().lower()
    words = _WORD.findall(said)
    least, most = REPLY_WORDS
    return (
        least <= len(words) <= most
        and any(words[: len(opening.split())] == opening.split() for opening in OPENINGS)
        and CURT_WORDS.isdisjoint(words)
        and said.endswith(ENDINGS)
    )


def _has_final_number(answer: str, row: Row) -> bool:
    found = final_number(answer)
    return found is not None and found == right_number(row)


def _number(text: str) -> Decimal | None:
    """The first word of a text as a number."""
    first = next(iter(text[: 4 * LONGEST_NUMBER].split()), "").removesuffix(".")
    return (
        Decimal(first.replace(",", "")) if len(first) <= LONGEST_NUMBER and _NUMBER.fullmatch(first) else None
    )
