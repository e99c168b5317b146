"""Word problems with worked answers in GSM8K's form (`... #### 12`): drawn at a small base's scale, or read."""

import random
from collections.abc import Iterator

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from delivery_plane.compute.graders import unfit
from delivery_plane.entry import read_text
from delivery_plane.errors import BadInput
from delivery_plane.scenario import DataNeeded, Row
from scenarios.data import data_folder, where_from
from scenarios.tasks.split import LICENCE, Split, stream, take

SOURCE = "tasks/gsm8k-form"

PUBLISHED = DataNeeded(
    folder="gsm8k",
    files=("train.jsonl", "test.jsonl"),
    origin="GSM8K as published by OpenAI (github.com/openai/grade-school-math, MIT)",
)


class _Problem(TypedDict):
    question: str
    answer: str


_PROBLEM: TypeAdapter[_Problem] = TypeAdapter(_Problem)

_NAMES = (
    "Ana",
    "Bo",
    "Carla",
    "Dan",
    "Eve",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "Kim",
    "Lea",
    "Max",
    "Nia",
    "Omar",
    "Pia",
)
_THINGS = ("apples", "books", "coins", "keys", "letters", "lamps", "cups", "plates", "boxes", "tickets")
_MOST = 10
"""No number of a problem is larger."""


def draw(count: int, seed: int, split: Split) -> list[Row]:
    """Problems of one or two steps with the steps worked out, as GSM8K's answers are."""
    rng = stream(SOURCE, seed, split)

    def problems() -> Iterator[tuple[str, Row]]:
        while True:
            prompt, steps, result = _problem(rng)
            answer = "\n".join([*steps, f"#### {result}"])
            yield prompt, Row(row_id="", prompt=prompt, answer=answer, licence=LICENCE, source=SOURCE)

    return take(count, split, problems())


def published(name: str) -> list[Row]:
    """The published problems of `train` or `test`, in file order. Raises BadInput saying what is missing or wrong."""
    path = data_folder(PUBLISHED) / f"{name}.jsonl"
    lines = read_text(path, "the published file").removesuffix("\n").split("\n")
    return [
        _published_row(f"{path}:{place}", f"{name}-{place:05d}", line) for place, line in enumerate(lines, 1)
    ]


def _published_row(where: str, row_id: str, line: str) -> Row:
    try:
        found = _PROBLEM.validate_json(line)
    except ValidationError:
        raise BadInput(f"{where}: no question with its answer; give {where_from(PUBLISHED)}") from None
    row = Row(
        row_id=row_id,
        prompt=found["question"],
        answer=found["answer"],
        licence="MIT",
        source=PUBLISHED.folder,
    )
    if why := unfit("final_number", row):
        raise BadInput(f"{where}: {why}; give {where_from(PUBLISHED)}")
    return row


def _problem(rng: random.Random) -> tuple[str, list[str], int]:
    """A question, its worked steps, and what they come to."""
    name, other = rng.sample(_NAMES, 2)
    thing = rng.choice(_THINGS)
    first, second, third = (rng.randint(2, _MOST) for _ in range(3))
    told = f"{name} has {first} {thing}."
    total, step = _worked(first, "+", second)
    match rng.randrange(4):
        case 0:
            told += f" {other} gives {name} {second} more."
            steps = [f"{name} has {step} {thing}."]
        case 1:
            first, second = max(first, second), min(first, second)
            total, step = _worked(first, "-", second)
            told = f"{name} has {first} {thing}. {name} gives {second} to {other}."
            steps = [f"{name} has {step} {thing} left."]
        case 2:
            told += f" {other} gives {name} {second} more. {name} finds {third} more."
            last, more = _worked(total, "+", third)
            steps = [f"{name} has {step} {thing}.", f"Then {name} has {more} {thing}."]
            total = last
        case _:
            lost = min(third, total)
            told += f" {other} gives {name} {second} more. {name} loses {lost}."
            last, less = _worked(total, "-", lost)
            steps = [f"{name} has {step} {thing}.", f"Then {name} has {less} {thing}."]
            total = last
    return f"{told} How many {thing} does {name} have?", steps, total


def _worked(left: int, sign: str, right: int) -> tuple[int, str]:
    """A step's result, and the step as GSM8K writes it."""
    result = left + right if sign == "+" else left - right
    return result, f"{left}{sign}{right} = <<{left}{sign}{right}={result}>>{result}"
