"""Customer rows on disk: read, profile, select. Text goes in, counts and row ids come out."""

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from delivery_plane.claims import IssueKind, Selector, problems
from delivery_plane.entry import read_text, sha256
from delivery_plane.errors import BadInput
from delivery_plane.facts import RowSet
from delivery_plane.files import write_whole
from delivery_plane.scenario import Row

OVERLAP_NGRAM_WORDS = 13
"""Words per n-gram that count as overlap between longer texts (the length used for GPT-3's clean-up,
Brown et al. 2020, appendix C). Shorter texts overlap when they are equal but for case and punctuation."""

_ROW: TypeAdapter[Row] = TypeAdapter(Row)
# An address is looked at from its at sign: a pattern for all of it would walk through long words at every letter.
_AT = re.compile("@")
_LOCAL = re.compile(r"[\w.+-]")
_DOMAIN = re.compile(r"[\w-]{1,63}(?:\.[\w-]{1,63})+")
_DIGITS = re.compile(r"\d(?:[ -]?\d){12,18}")
_PHONE_REGIONS = ("GB", "US")
_EXTENSION = re.compile(r"\W*(?:ext\w*|x)\W*\d+$", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"\w+")


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSON-lines file. Raises BadInput naming the line."""
    # Not splitlines(): a prompt may hold other characters that it takes for the end of a line.
    lines = read_text(path, "a JSON-lines file of rows").removesuffix("\n").split("\n")
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_ROW.validate_json(line))
        except ValidationError as error:
            raise BadInput(f"{path}:{number}: not a row: {problems(error)}") from None
    if len({row["row_id"] for row in rows}) != len(rows):
        raise BadInput(f"{path}: row ids are not unique")
    return rows


def write_rows(path: Path, rows: Iterable[Row]) -> str:
    """Write rows as JSON lines, whole or not at all; returns the file's SHA-256."""
    data = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows).encode()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, data)
    return sha256(data)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return sha256(path.read_bytes())


def normalised(text: str) -> str:
    """Lower-case words only: what is left when case, spacing and punctuation do not matter."""
    return " ".join(_WORD.findall(text.casefold()))


def has_personal_data(text: str) -> bool:
    """Whether a text holds an e-mail address, a phone number or a valid payment card number."""
    import phonenumbers
    from stdnum import luhn

    if any(
        at.start() and _LOCAL.match(text[at.start() - 1]) and _DOMAIN.match(text, at.end())
        for at in _AT.finditer(text)
    ):
        return True
    if sum(character.isdigit() for character in text) < 7:
        return False
    if any(luhn.is_valid(re.sub(r"\D", "", match.group())) for match in _DIGITS.finditer(text)):
        return True
    # "Possible" by length and prefix, in any of the regions: numbers reserved for fiction count as well.
    # Ten digits without a letter between: order numbers and amounts in one sentence are not a phone number.
    return any(
        sum(character.isdigit() for character in found.raw_string) >= 10
        and not _LETTER.search(_EXTENSION.sub("", found.raw_string))
        for region in _PHONE_REGIONS
        for found in phonenumbers.PhoneNumberMatcher(text, region, leniency=phonenumbers.Leniency.POSSIBLE)
    )


def overlapping(public: Sequence[Row], held_out: Sequence[Row], ngram_words: int) -> tuple[str, ...]:
    """Ids of public rows whose prompt equals a held-out prompt, or shares an n-gram of words with one.

    Words that most prompts begin with (an instruction) count in no n-gram.
    """
    texts = {id(row): _asked(row).split() for row in (*public, *held_out)}
    instruction = _instruction(list(texts.values()))

    def ngrams(row: Row) -> Iterable[tuple[str, ...]]:
        words = texts[id(row)]
        pairs = zip(words, instruction, strict=False)
        begin = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return (tuple(words[at : at + ngram_words]) for at in range(begin, len(words) - ngram_words + 1))

    whole = {tuple(texts[id(row)]) for row in held_out}
    grams = {gram for row in held_out for gram in ngrams(row)}
    return tuple(
        row["row_id"]
        for row in public
        if tuple(texts[id(row)]) in whole or any(gram in grams for gram in ngrams(row))
    )


def _instruction(texts: list[list[str]]) -> list[str]:
    """The longest run of words that more than half of the texts begin with."""
    shared: list[str] = []
    rest = texts
    while rest:
        following = Counter(text[len(shared)] for text in rest if len(text) > len(shared))
        if not following:
            break
        word, count = following.most_common(1)[0]
        if 2 * count <= len(texts) or len(texts) == 1:
            break
        rest = [text for text in rest if text[len(shared) : len(shared) + 1] == [word]]
        shared.append(word)
    return shared


def _text(row: Row) -> str:
    """All that a row says."""
    return "\n".join(
        (row["prompt"], *row.get("turns", ()), row["answer"], row.get("rejected", ""), row.get("tests", ""))
    )


def _asked(row: Row) -> str:
    """What comes before the answer, normalised: of a conversation, all of it."""
    return normalised("\n".join((row["prompt"], *row.get("turns", ()))))


def issues(
    rows: Sequence[Row], permitted_licences: Iterable[str], overlap_ids: Iterable[str]
) -> dict[IssueKind, RowSet]:
    """What is wrong with a set of rows, by kind.

    `duplicates` are repeats of an earlier row (case and spacing aside); `conflicting_labels` are all
    rows whose prompt also occurs with another answer.
    """
    permitted, overlap = set(permitted_licences), set(overlap_ids)
    by_prompt: dict[str, set[str]] = defaultdict(set)
    seen: set[tuple[str, str]] = set()
    duplicates = []
    for row in rows:
        pair = (_asked(row), row["answer"].strip())
        if pair in seen:
            duplicates.append(row["row_id"])
        seen.add(pair)
        by_prompt[pair[0]].add(pair[1])
    found: dict[IssueKind, list[str]] = {
        "duplicates": duplicates,
        "conflicting_labels": [row["row_id"] for row in rows if len(by_prompt[_asked(row)]) > 1],
        "unlicensed_rows": [row["row_id"] for row in rows if row["licence"] not in permitted],
        "pii": [row["row_id"] for row in rows if has_personal_data(_text(row))],
        "sealed_overlap": [row["row_id"] for row in rows if row["row_id"] in overlap],
    }
    return {kind: RowSet(count=len(ids), row_ids=tuple(ids)) for kind, ids in found.items()}


def select(
    rows: Sequence[Row],
    selectors: Sequence[Selector],
    permitted_licences: Iterable[str],
    overlap_ids: Iterable[str],
) -> tuple[list[Row], dict[str, int]]:
    """Run a plan's selectors in order; returns the rows left and how many each step removed."""
    permitted, overlap = set(permitted_licences), set(overlap_ids)
    left = list(rows)
    removed: dict[str, int] = {}
    for position, selector in enumerate(selectors, start=1):
        before = len(left)
        if selector.name == "sample":
            # In the order of hashed ids: deterministic, and no order of the file can favour a class.
            ordered = sorted(left, key=lambda row: sha256(row["row_id"].encode()))
            keep = {row["row_id"] for row in ordered[: selector.rows or len(ordered)]}
        else:
            kinds: dict[str, IssueKind] = {
                "dedupe": "duplicates",
                "drop_conflicting": "conflicting_labels",
                "drop_unlicensed": "unlicensed_rows",
                "drop_pii": "pii",
                "drop_overlap": "sealed_overlap",
            }
            bad = set(issues(left, permitted, overlap)[kinds[selector.name]].row_ids)
            keep = {row["row_id"] for row in left} - bad
        left = [row for row in left if row["row_id"] in keep]
        removed[f"{position}:{selector.name}"] = before - len(left)
    return left, removed
