"""The customer's rows: what is planted is found, what is clean is left, and selectors do what they say."""

import json
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery_plane.claims import Selector
from delivery_plane.errors import BadInput
from delivery_plane.rows import (
    OVERLAP_NGRAM_WORDS,
    file_digest,
    has_personal_data,
    issues,
    overlapping,
    read_rows,
    select,
    write_rows,
)
from delivery_plane.scenario import Row
from scenarios.support_intents.generator import PERMITTED_LICENCES, PLANTED_ROWS, Drop, generate

PUBLIC_SEED, SEALED_KEY = 20261, b"x" * 32


@cache
def drop() -> Drop:
    return generate(PUBLIC_SEED, SEALED_KEY)


@cache
def overlap() -> tuple[str, ...]:
    return overlapping(drop().public, drop().sealed, OVERLAP_NGRAM_WORDS)


@cache
def found() -> dict[str, set[str]]:
    profile = issues(drop().public, PERMITTED_LICENCES, overlap())
    assert all(rows.count == len(rows.row_ids) == len(set(rows.row_ids)) for rows in profile.values())
    return {kind: set(rows.row_ids) for kind, rows in profile.items()}


def row(row_id: str, prompt: str, answer: str = "a", licence: str = "cc-by-4.0") -> Row:
    return Row(row_id=row_id, prompt=prompt, answer=answer, licence=licence, source="test")


def ids(rows: Sequence[Row]) -> set[str]:
    return {item["row_id"] for item in rows}


# --- the real drop


@pytest.mark.parametrize("kind", PLANTED_ROWS)
def test_every_planted_row_is_found(kind: str) -> None:
    planted = set(drop().planted[kind])
    assert len(planted) == PLANTED_ROWS[kind]
    assert planted <= found()[kind]


@pytest.mark.parametrize("kind", ["duplicates", "conflicting_labels", "unlicensed_rows", "pii"])
def test_no_clean_row_is_taken_for_a_planted_one(kind: str) -> None:
    assert found()[kind] == set(drop().planted[kind])


def test_what_overlaps_beyond_the_planted_rows_really_shares_its_words() -> None:
    sealed = [item["prompt"].casefold() for item in drop().sealed]
    extra = found()["sealed_overlap"] - set(drop().planted["sealed_overlap"])
    assert len(extra) < 0.02 * len(drop().public)
    for item in drop().public:
        if item["row_id"] in extra:
            message = item["prompt"].removeprefix("Which intent?").casefold()
            assert any(set(message.split()[:3]) & set(other.split()) for other in sealed)


def test_the_held_out_splits_share_no_row_with_each_other() -> None:
    for one, other in (("probe", "dev"), ("probe", "sealed"), ("dev", "sealed")):
        assert overlapping(getattr(drop(), one), getattr(drop(), other), 10**6) == ()


DROPS = {
    "dedupe": "duplicates",
    "drop_conflicting": "conflicting_labels",
    "drop_unlicensed": "unlicensed_rows",
    "drop_pii": "pii",
    "drop_overlap": "sealed_overlap",
}


@pytest.mark.parametrize("name", DROPS)
def test_a_selector_removes_exactly_what_it_names(name: Any) -> None:
    left, removed = select(drop().public, [Selector(name=name)], PERMITTED_LICENCES, overlap())
    assert ids(drop().public) - ids(left) == found()[DROPS[name]]
    assert removed == {f"1:{name}": len(found()[DROPS[name]])}
    assert [item["row_id"] for item in left] == [
        item["row_id"] for item in drop().public if item["row_id"] in ids(left)
    ]


@settings(deadline=None, max_examples=3)
@given(order=st.permutations(sorted(DROPS)))
def test_all_selectors_leave_no_issue_whatever_their_order(order: list[Any]) -> None:
    left, removed = select(
        drop().public, [Selector(name=name) for name in order], PERMITTED_LICENCES, overlap()
    )
    remaining = issues(left, PERMITTED_LICENCES, overlap())
    assert {kind: rows.count for kind, rows in remaining.items()} == dict.fromkeys(PLANTED_ROWS, 0)
    assert len(left) == len(drop().public) - sum(removed.values())
    assert list(removed) == [f"{place}:{name}" for place, name in enumerate(order, start=1)]


def test_no_selector_leaves_every_row_and_every_issue() -> None:
    left, removed = select(drop().public, [], PERMITTED_LICENCES, overlap())
    assert left == drop().public
    assert removed == {}


# --- sample


@settings(deadline=None, max_examples=20)
@given(size=st.integers(1, 400), shuffled=st.randoms(use_true_random=False))
def test_a_sample_is_the_same_rows_however_the_file_is_ordered(size: int, shuffled: Any) -> None:
    rows = drop().public[:300]
    again = list(rows)
    shuffled.shuffle(again)
    sampler = [Selector(name="sample", rows=size)]
    one, removed = select(rows, sampler, PERMITTED_LICENCES, ())
    other, _ = select(again, sampler, PERMITTED_LICENCES, ())
    assert ids(one) == ids(other)
    assert len(one) == min(size, 300)
    assert removed == {"1:sample": 300 - len(one)}
    smaller, _ = select(rows, [Selector(name="sample", rows=max(1, size // 2))], PERMITTED_LICENCES, ())
    assert ids(smaller) <= ids(one)


def test_a_sample_does_not_take_the_head_of_the_file() -> None:
    one, _ = select(drop().public, [Selector(name="sample", rows=100)], PERMITTED_LICENCES, ())
    assert len(ids(one) & ids(drop().public[:100])) < 20
    assert select(drop().public, [Selector(name="sample")], PERMITTED_LICENCES, ())[0] == drop().public


# --- overlap

INSTRUCTION = "Please read the message below and answer with the single best matching intent label only: "
LONG = "the slot for the van came and went and nobody rang the bell at our door yesterday"


@settings(deadline=None, max_examples=30)
@given(
    public=st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta"]), min_size=1, max_size=4),
    held=st.lists(st.sampled_from(["gamma", "delta", "epsilon"]), min_size=1, max_size=3),
    instruction=st.sampled_from(["", "Which intent? ", INSTRUCTION, INSTRUCTION * 3]),
)
def test_an_instruction_that_all_prompts_share_makes_none_of_them_overlap(
    public: list[str], held: list[str], instruction: str
) -> None:
    rows = [row(f"r{place}", instruction + word) for place, word in enumerate(public)]
    sealed = [row(f"s{place}", instruction + word) for place, word in enumerate([*held, "zeta"])]
    hits = overlapping(rows, sealed, OVERLAP_NGRAM_WORDS)
    assert hits == tuple(f"r{place}" for place, word in enumerate(public) if word in held)


def test_one_row_without_the_instruction_does_not_make_the_others_overlap() -> None:
    rows = [row("r1", INSTRUCTION + "alpha"), row("r2", INSTRUCTION + "beta"), row("odd", "gamma")]
    assert overlapping(rows, [row("s1", INSTRUCTION + "delta")], OVERLAP_NGRAM_WORDS) == ()


@pytest.mark.parametrize(
    ("prompt", "overlaps"),
    [
        (LONG, True),
        (LONG.upper() + "!!", True),
        (f"hello, {LONG.replace(' ', ',  ')}. thanks", True),
        (" ".join(LONG.split()[:13]), True),
        (" ".join(LONG.split()[-13:]) + " and more", True),
        (" ".join(LONG.split()[:12]) + " and more", False),
        (" ".join(reversed(LONG.split())), False),
        ("short one", True),
        ("Short - one?", True),
        ("short one more", False),
    ],
)
def test_texts_overlap_when_equal_or_by_thirteen_words(prompt: str, overlaps: bool) -> None:
    public = [row("r1", prompt), row("r2", "something else"), row("r3", "a third")]
    held = [row("s1", LONG), row("s2", "short one"), row("s3", "zebra")]
    assert overlapping(public, held, OVERLAP_NGRAM_WORDS) == (("r1",) if overlaps else ())


# --- issues, row by row


def test_repeats_and_contradictions_are_told_apart() -> None:
    rows = [
        row("r1", "Where is it?", "track"),
        row("r2", "where IS it", "track"),
        row("r3", "where  is it!", " track "),
        row("r4", "Where was it?", "track"),
        row("r5", "lost", "claim"),
        row("r6", "LOST!", "track"),
    ]
    profile = issues(rows, ["cc-by-4.0"], ["r4", "unknown"])
    assert profile["duplicates"].row_ids == ("r2", "r3")
    assert profile["conflicting_labels"].row_ids == ("r5", "r6")
    assert profile["sealed_overlap"].row_ids == ("r4",)
    assert profile["unlicensed_rows"].count == 0
    assert issues(rows, [], [])["unlicensed_rows"].count == 6


def test_personal_data_in_the_answer_counts_as_well() -> None:
    profile = issues([row("r1", "who?", "ana@example.org"), row("r2", "who?", "nobody")], ["cc-by-4.0"], ())
    assert profile["pii"].row_ids == ("r1",)


@pytest.mark.parametrize(
    "more",
    [
        {"rejected": "ask ana@example.org"},
        {"tests": "# ana@example.org"},
        {"turns": ["I am ana@example.org", "hi"]},
    ],
)
def test_personal_data_counts_wherever_a_row_may_hold_it(more: Row) -> None:
    profile = issues([{**row("r1", "who?", "nobody"), **more}], ["cc-by-4.0"], ())
    assert profile["pii"].row_ids == ("r1",)


def test_conversations_are_the_same_only_when_all_that_was_said_is() -> None:
    begun = {"turns": ["3", "higher"]}
    rows: list[Row] = [
        row("r1", "Guess my number.", "3"),
        {**row("r2", "Guess my number.", "5"), **begun},  # type: ignore[typeddict-item]
        {**row("r3", "guess my number", "5"), **begun},  # type: ignore[typeddict-item]
        {**row("r4", "Guess my number.", "6"), **begun},  # type: ignore[typeddict-item]
    ]
    profile = issues(rows, ["cc-by-4.0"], ())
    assert profile["duplicates"].row_ids == ("r3",)
    assert profile["conflicting_labels"].row_ids == ("r2", "r3", "r4")
    assert overlapping(rows, rows[1:2], 13) == ("r2", "r3", "r4")


@pytest.mark.parametrize(
    "text",
    [
        "mail ana.hart12@example.com",
        "ana+shop@mail.example.co.uk, thanks",
        "(write to a@b.co)",
        "my card is 4000000000000002",
        "4000 0000 0000 0002 is my card",
        "card:4000-0000-0000-0002.",
        "amex 378282246310005",
        "call me on 07700 900123",
        "+44 7700 900123",
        "tel:+447700900123.",
        "ring 07700-900-123 after six",
        "(202) 555-0143",
        "+1 202-555-0143 or 07700 900123",
        "+49 30 901820",
        "call 020 7946 0958 ext. 12",
        "020 7946 0958 x12",
    ],
)
def test_an_address_a_phone_or_a_card_is_personal(text: str) -> None:
    assert has_personal_data(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "where is my parcel",
        "order 12345",
        "TW1234 and TW-567 and number 48213",
        "order 4821 paid 35 pounds on the 23rd, number 12345",
        "number 48213 and 12 pounds and 3456 and 77",
        "I paid 12.50 pounds twice, so 25.00 in all",
        "1234567.89 is what the bill says",
        "my card is 4000000000000003",
        "4000 0000 0000 0003 does not add up",
        "@handle at shop",
        "a@b",
        "5 @ 3 pounds each",
        "2026-12-01 04:29:15",
        "open 9-17, Monday to Friday",
    ],
)
def test_order_numbers_amounts_and_dates_are_not_personal(text: str) -> None:
    assert not has_personal_data(text)


@settings(deadline=None, max_examples=40)
@given(st.text(st.characters(categories=("Lu", "Ll", "Zs", "Po"), exclude_characters="@＠"), max_size=60))
def test_words_alone_are_never_personal(text: str) -> None:
    assert not has_personal_data(text)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 25_000,
        "1" * 25_000,
        "1 " * 12_500,
        "a@" * 12_500,
        "a@a." * 6_250,
        "+44 " * 6_250,
    ],
    ids=lambda text: text[:6],
)
def test_a_long_row_is_profiled_in_a_moment(text: str) -> None:
    begun = time.process_time()
    has_personal_data(text)
    # A few milliseconds; were it quadratic, minutes.
    assert time.process_time() - begun < 5


# --- files

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(TEXT, TEXT), max_size=4))
def test_rows_read_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]]
) -> None:
    rows = [row(f"r{place}", prompt, answer) for place, (prompt, answer) in enumerate(texts)]
    path = tmp_path_factory.mktemp("rows") / "folder" / "rows.jsonl"
    digest = write_rows(path, rows)
    assert digest == file_digest(path)
    if rows:
        assert read_rows(path) == rows
    assert [entry.name for entry in path.parent.iterdir()] == ["rows.jsonl"]


GOOD = json.dumps(row("r1", "hello"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{GOOD}\nnot JSON\n", r"rows\.jsonl:2: not a row"),
        (f"{GOOD}\n{GOOD}\n", "row ids are not unique"),
        (f'{GOOD}\n{{"row_id": "r2"}}\n', ":2: not a row: prompt: Field required"),
        (f"{GOOD}\n[]\n", ":2: not a row"),
        (GOOD.replace('"hello"', "5"), ":1: not a row: prompt:"),
        (GOOD.replace('"hello"', '"\\ud800"'), ":1: not a row"),
    ],
)
def test_a_bad_row_is_bad_input_naming_file_line_and_field(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(BadInput, match=problem) as caught:
        read_rows(path)
    assert len(str(caught.value).splitlines()) == 1
    assert "hello" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "binary", tmp_path / "missing", tmp_path):
        with pytest.raises(BadInput, match="cannot be read"):
            read_rows(path)
