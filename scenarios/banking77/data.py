"""BANKING77 as published: two CSV files and the list of intents, read and checked. Splits nothing."""

import csv
import io
from pathlib import Path
from typing import NamedTuple

from delivery_plane.entry import parse_json, read_text
from delivery_plane.errors import BadInput, one_line

INTENTS = 77
COLUMNS = ["text", "category"]


class Message(NamedTuple):
    """One customer message, its white space collapsed, and the intent it was filed under."""

    text: str
    intent: str


class Banking77(NamedTuple):
    """The published data set, in file order."""

    train: list[Message]
    test: list[Message]
    intents: tuple[str, ...]


def read(folder: Path) -> Banking77:
    """The data set in `folder`. Raises BadInput naming file, line and what is wrong."""
    intents = _intents(folder / "categories.json")
    known = frozenset(intents)
    return Banking77(_messages(folder / "train.csv", known), _messages(folder / "test.csv", known), intents)


def _text(path: Path) -> str:
    text = read_text(path, "the published file").removeprefix("\ufeff")
    if not text.strip():
        raise BadInput(f"{path}: empty")
    if "\0" in text:
        raise BadInput(f"{path}: holds a NUL character")
    return text


def _intents(path: Path) -> tuple[str, ...]:
    try:
        found = parse_json(_text(path))
    except ValueError as error:
        raise BadInput(f"{path}: not JSON ({one_line(error, 100)})") from None
    names = (
        {name for name in found if isinstance(name, str) and name.strip()}
        if isinstance(found, list)
        else set()
    )
    if len(names) != INTENTS or len(found) != INTENTS:
        raise BadInput(f"{path}: no list of {INTENTS} different intent names")
    return tuple(sorted(names))


def _messages(path: Path, known: frozenset[str]) -> list[Message]:
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    messages = []
    try:
        columns = next(reader)
        if columns != COLUMNS:
            raise BadInput(f"{path}: columns are {one_line(columns, 80)}, not {COLUMNS}")
        for fields in reader:
            where = f"{path}:{reader.line_num}"
            if len(fields) != len(COLUMNS):
                raise BadInput(f"{where}: {len(fields)} fields, {len(COLUMNS)} are needed")
            text = " ".join(fields[0].split())
            if not text:
                raise BadInput(f"{where}: a row without text")
            if fields[1] not in known:
                raise BadInput(f"{where}: unknown category {one_line(fields[1], 60)!r}")
            messages.append(Message(text, fields[1]))
    except csv.Error as error:
        raise BadInput(f"{path}:{reader.line_num}: {one_line(error, 100)}") from None
    return messages
