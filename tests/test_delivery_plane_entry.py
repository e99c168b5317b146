"""Every way of changing a record is found out, and the first bad entry is the one that is named."""

import copy
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import records
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery_plane.entry import (
    GENESIS,
    Checkpoint,
    Entry,
    Verification,
    canonical,
    entry_hash,
    parse_entries,
    read_checkpoints,
    read_json_lines,
    sign_checkpoint,
    verify,
)
from delivery_plane.errors import BadInput

Line = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

PLATFORM = Ed25519PrivateKey.from_private_bytes(b"p" * 32)
STRANGER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)


def public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


@cache
def exported() -> str:
    """A healthy delivery's lines, as one JSON text."""
    return json.dumps([entry.model_dump(mode="json") for entry in records.healthy_record()])


def record() -> list[Line]:
    lines: list[Line] = json.loads(exported())
    return lines


SIZE = len(record())


def signed(
    lines: Sequence[Line], sizes: Sequence[int], key: Ed25519PrivateKey = PLATFORM
) -> list[Checkpoint]:
    """Checkpoints at these sizes, following one another."""
    entries = [Entry.model_validate(line) for line in lines]
    spans = zip([0, *sizes], sizes, strict=False)
    return [sign_checkpoint(key, entries[:size], since, "2026-01-01T00:00:00+00:00") for since, size in spans]


def rehashed(lines: list[Line], number: int) -> list[Line]:
    """The chain made consistent again from an entry on, as somebody who knows how would."""
    for place in range(number - 1, len(lines)):
        lines[place]["number"] = place + 1
        lines[place]["prev_hash"] = lines[place - 1]["hash"] if place else GENESIS
        lines[place]["hash"] = entry_hash(lines[place])
    return lines


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every value that holds no other."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key], (*path, key))]
    if isinstance(value, list):
        return [leaf for place, item in enumerate(value) for leaf in leaves(item, (*path, place))]
    return [path]


def other_value(value: Any) -> Any:
    """Another value of the same type, so that only the hash can tell."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value[:-1] + ("0" if value.endswith("1") else "1")
    return value + 1 if value is not None else "was null"


def edit(lines: list[Line], number: int, draw: Draw, keep: tuple[str, ...] = ("hash",)) -> list[Line]:
    """One value of one entry replaced, somewhere in it."""
    line = lines[number - 1]
    paths = [path for path in leaves(line) if path[0] not in keep]
    *parents, last = draw(st.sampled_from(sorted(paths, key=str)))
    place = line
    for parent in parents:
        place = place[parent]
    place[last] = other_value(place[last])
    return lines


def forged(lines: Sequence[Line], draw: Draw) -> Line:
    """An entry that never was, like one of the record's."""
    line = copy.deepcopy(draw(st.sampled_from(lines)))
    return {**line, "idempotency_key": f"forged:{line['idempotency_key']}"}


# A mutation takes a record, an entry's number and a way to draw; it returns the record and the first bad number.
Mutated = tuple[list[Line], int]


def edited(lines: list[Line], number: int, draw: Draw) -> Mutated:
    return edit(lines, number, draw), number


def hash_edited(lines: list[Line], number: int, draw: Draw) -> Mutated:
    field = draw(st.sampled_from(["hash", "prev_hash"]))
    lines[number - 1][field] = other_value(lines[number - 1][field])
    return lines, number


def edited_and_rehashed(lines: list[Line], number: int, draw: Draw) -> Mutated:
    edit(lines, number, draw, keep=("hash", "prev_hash", "number"))
    return rehashed(lines, number), number


def edited_and_own_hash_mended(lines: list[Line], number: int, draw: Draw) -> Mutated:
    edit(lines, number, draw, keep=("hash", "prev_hash", "number"))
    lines[number - 1]["hash"] = entry_hash(lines[number - 1])
    return lines, number


def swapped(lines: list[Line], number: int, draw: Draw) -> Mutated:
    other = draw(st.integers(1, SIZE).filter(lambda place: place != number))
    lines[number - 1], lines[other - 1] = lines[other - 1], lines[number - 1]
    return lines, min(number, other)


def swapped_and_rehashed(lines: list[Line], number: int, draw: Draw) -> Mutated:
    lines, first = swapped(lines, number, draw)
    return rehashed(lines, first), first


def removed(lines: list[Line], number: int, draw: Draw) -> Mutated:  # noqa: ARG001 - one signature
    del lines[number - 1]
    return lines, number


def removed_and_rehashed(lines: list[Line], number: int, draw: Draw) -> Mutated:
    lines, _ = removed(lines, number, draw)
    return rehashed(lines, number), number


def inserted(lines: list[Line], number: int, draw: Draw) -> Mutated:
    lines.insert(number - 1, forged(lines, draw))
    return lines, number


def inserted_and_rehashed(lines: list[Line], number: int, draw: Draw) -> Mutated:
    lines, _ = inserted(lines, number, draw)
    return rehashed(lines, number), number


def repeated(lines: list[Line], number: int, draw: Draw) -> Mutated:  # noqa: ARG001
    lines.insert(number, copy.deepcopy(lines[number - 1]))
    return lines, number + 1


def truncated(lines: list[Line], number: int, draw: Draw) -> Mutated:  # noqa: ARG001
    return lines[: number - 1], number


def truncated_and_refilled(lines: list[Line], number: int, draw: Draw) -> Mutated:
    lines = [*lines[: number - 1], *(forged(lines, draw) for _ in range(SIZE - number + 1))]
    return rehashed(lines, number), number


def unchained_tail(lines: list[Line], number: int, draw: Draw) -> Mutated:  # noqa: ARG001
    return [*lines, forged(lines, draw)], SIZE + 1


def of_another_delivery(lines: list[Line], number: int, draw: Draw) -> Mutated:  # noqa: ARG001
    others = rehashed([{**line, "delivery_id": "delivery-2"} for line in record()], 1)
    return [*lines[: number - 1], *others[number - 1 :]], number


def of_another_delivery_renamed(lines: list[Line], number: int, draw: Draw) -> Mutated:  # noqa: ARG001
    others = rehashed([{**line, "actor": "somebody else"} for line in record()], 1)
    return [*lines[: number - 1], *others[number - 1 :]], number


def field_added(lines: list[Line], number: int, draw: Draw) -> Mutated:  # noqa: ARG001
    lines[number - 1]["note"] = "x"
    return rehashed(lines, number), number


def field_removed(lines: list[Line], number: int, draw: Draw) -> Mutated:
    del lines[number - 1][draw(st.sampled_from(sorted(lines[number - 1])))]
    return lines, number


def not_an_entry(lines: list[Line], number: int, draw: Draw) -> Mutated:
    lines[number - 1] = draw(st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=5)))
    return lines, number


MUTATIONS = [
    edited,
    hash_edited,
    edited_and_rehashed,
    edited_and_own_hash_mended,
    swapped,
    swapped_and_rehashed,
    removed,
    removed_and_rehashed,
    inserted,
    inserted_and_rehashed,
    repeated,
    truncated,
    truncated_and_refilled,
    unchained_tail,
    of_another_delivery,
    of_another_delivery_renamed,
    field_added,
    field_removed,
    not_an_entry,
]

# The ends are where an error by one would show.
NUMBERS = st.sampled_from([1, 2, SIZE - 1, SIZE]) | st.integers(1, SIZE)

SIZES = st.lists(st.integers(1, SIZE - 1), max_size=4, unique=True).map(lambda some: [*sorted(some), SIZE])


@settings(deadline=None, max_examples=20)
@given(sizes=SIZES)
def test_a_record_left_alone_verifies_however_often_it_was_signed(sizes: list[int]) -> None:
    lines = record()
    result = verify(lines, signed(lines, sizes), public(PLATFORM))
    assert result.verified, result.why
    assert (result.entries, result.head, result.checkpoints) == (SIZE, lines[-1]["hash"], len(sizes))
    assert (result.first_bad, result.why) == (None, "")


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_changed_record_is_found_out_and_its_first_bad_entry_named(
    mutate: Callable[[list[Line], int, Draw], Mutated],
) -> None:
    @settings(deadline=None, max_examples=20)
    @given(number=NUMBERS, sizes=SIZES, data=st.data())
    def property_(number: int, sizes: list[int], data: st.DataObject) -> None:
        checkpoints = signed(record(), sizes)
        lines, first_bad = mutate(record(), number, data.draw)
        result = verify(lines, checkpoints, public(PLATFORM))
        assert not result.verified
        assert result.first_bad == first_bad, result.why
        assert result.why

    property_()


# --- the signed checkpoints


def unsigned(checkpoints: Sequence[Checkpoint], place: int, **changes: Any) -> list[Checkpoint]:
    """One checkpoint changed, its signature left as it was."""
    changed = checkpoints[place].model_copy(update=changes)
    return [*checkpoints[:place], changed, *checkpoints[place + 1 :]]


CHANGES: dict[str, Callable[[Checkpoint], dict[str, Any]]] = {
    "root": lambda checkpoint: {"root": other_value(checkpoint.root)},
    "size": lambda checkpoint: {"size": checkpoint.size + 1},
    "origin": lambda checkpoint: {"origin": checkpoint.origin + "1"},
    "signed_at": lambda _: {"signed_at": "2027-01-01T00:00:00+00:00"},
    "hashes": lambda checkpoint: {"hashes": (*checkpoint.hashes[:-1], GENESIS)},
    "fewer hashes": lambda checkpoint: {"hashes": checkpoint.hashes[1:]},
    "public_key": lambda _: {"public_key": public(STRANGER)},
    "signature": lambda checkpoint: {"signature": other_value(checkpoint.signature)},
    "no signature": lambda _: {"signature": ""},
    "odd signature": lambda _: {"signature": "no hex"},
}


@pytest.mark.parametrize("change", CHANGES)
@settings(deadline=None, max_examples=8)
@given(sizes=SIZES, data=st.data())
def test_an_edited_checkpoint_is_named_by_its_first_entry(
    change: str, sizes: list[int], data: st.DataObject
) -> None:
    checkpoints = signed(record(), sizes)
    place = data.draw(st.integers(0, len(sizes) - 1))
    changed = unsigned(checkpoints, place, **CHANGES[change](checkpoints[place]))
    result = verify(record(), changed, public(PLATFORM))
    assert not result.verified
    assert result.first_bad == checkpoints[place].since + 1


@pytest.mark.parametrize("since", [0, 25, 10**9])
def test_a_checkpoint_moved_by_its_own_word_is_named_by_its_first_entry(since: int) -> None:
    changed = unsigned(signed(record(), [10, 20, SIZE]), 1, since=since)
    result = verify(record(), changed, public(PLATFORM))
    assert not result.verified
    assert result.first_bad == 11


@settings(deadline=None, max_examples=15)
@given(sizes=SIZES.filter(lambda sizes: len(sizes) > 1), data=st.data())
def test_a_checkpoint_removed_moved_or_repeated_is_found_out(sizes: list[int], data: st.DataObject) -> None:
    checkpoints = signed(record(), sizes)
    place = data.draw(st.integers(0, len(sizes) - 2))
    later = data.draw(st.integers(place + 1, len(sizes) - 1))
    without = [*checkpoints[:place], *checkpoints[place + 1 :]]
    moved = list(checkpoints)
    moved[place], moved[later] = moved[later], moved[place]
    for changed in (without, moved):
        result = verify(record(), changed, public(PLATFORM))
        assert not result.verified
        assert result.first_bad == checkpoints[place].since + 1
    doubled = [*checkpoints[: place + 1], *checkpoints[place:]]
    assert verify(record(), doubled, public(PLATFORM)).first_bad == checkpoints[place].size + 1


def test_without_a_checkpoint_nothing_verifies() -> None:
    assert verify(record(), [], public(PLATFORM)).first_bad == 1
    assert not verify([], [], public(PLATFORM)).verified
    assert verify([], signed(record(), [SIZE]), public(PLATFORM)).first_bad == 1


@pytest.mark.parametrize("key", [public(STRANGER), "", "no hex", "ab", public(PLATFORM)[:-2], "0" * 64])
def test_with_another_key_nothing_verifies(key: str) -> None:
    result = verify(record(), signed(record(), [20, SIZE]), key)
    assert not result.verified
    assert result.first_bad == 1


@settings(deadline=None, max_examples=20)
@given(number=NUMBERS, sizes=SIZES, data=st.data())
def test_signing_a_changed_record_with_another_key_does_not_help(
    number: int, sizes: list[int], data: st.DataObject
) -> None:
    lines = record()
    lines[number - 1]["actor"] = "mallory"
    own = signed(rehashed(lines, number), sizes, STRANGER)
    assert verify(lines, own, public(STRANGER)).verified  # consistent in itself, so only the key tells
    assert verify(lines, own, public(PLATFORM)).first_bad == 1
    posing = [checkpoint.model_copy(update={"public_key": public(PLATFORM)}) for checkpoint in own]
    assert verify(lines, posing, public(PLATFORM)).first_bad == 1
    honest = signed(record(), sizes)
    place = data.draw(st.integers(0, len(sizes) - 1))
    mixed = [*honest[:place], *own[place:]]
    assert verify(lines, mixed, public(PLATFORM)).first_bad in (number, honest[place].since + 1)


def test_a_tail_signed_by_another_key_is_not_taken() -> None:
    lines = rehashed([*record(), {**record()[-1], "idempotency_key": "forged"}], SIZE + 1)
    tail = signed(lines, [SIZE, SIZE + 1], STRANGER)[1]
    result = verify(lines, [*signed(record(), [SIZE]), tail], public(PLATFORM))
    assert not result.verified
    assert result.first_bad == SIZE + 1


def test_the_checkpoints_of_another_delivery_do_not_vouch_for_this_one() -> None:
    other = rehashed([{**line, "delivery_id": "delivery-2"} for line in record()], 1)
    theirs = signed(other, [SIZE])
    assert verify(other, theirs, public(PLATFORM)).verified
    assert verify(record(), theirs, public(PLATFORM)).first_bad == 1


SIGNED = 40
"""Where the signatures of the next record end; what comes after hangs on the chain alone."""


def wrong_number(lines: list[Line], number: int, draw: Draw) -> Mutated:
    lines[number - 1]["number"] += draw(st.sampled_from([-1, 1, 100]))
    lines[number - 1]["hash"] = entry_hash(lines[number - 1])
    return lines, number


def unchained(lines: list[Line], number: int, draw: Draw) -> Mutated:  # noqa: ARG001
    lines[number - 1]["prev_hash"] = GENESIS
    lines[number - 1]["hash"] = entry_hash(lines[number - 1])
    return lines, number


def foreign(lines: list[Line], number: int, draw: Draw) -> Mutated:  # noqa: ARG001
    lines[number - 1]["delivery_id"] = "delivery-2"
    return rehashed(lines, number), number


@pytest.mark.parametrize(
    "mutate",
    [
        edited,
        hash_edited,
        removed,
        inserted,
        repeated,
        field_added,
        not_an_entry,
        wrong_number,
        unchained,
        foreign,
    ],
)
def test_what_nothing_signed_yet_must_still_follow_the_chain(
    mutate: Callable[[list[Line], int, Draw], Mutated],
) -> None:
    @settings(deadline=None, max_examples=10)
    @given(number=st.integers(SIGNED + 1, SIZE - 1), data=st.data())
    def property_(number: int, data: st.DataObject) -> None:
        checkpoints = signed(record(), [20, SIGNED])
        assert verify(record(), checkpoints, public(PLATFORM)).verified
        lines, first_bad = mutate(record(), number, data.draw)
        result = verify(lines, checkpoints, public(PLATFORM))
        assert not result.verified
        assert result.first_bad == first_bad, result.why

    property_()


def vouched(result: Verification) -> int:
    """How many entries the result says are vouched for by a signature."""
    if not result.verified:
        return (result.first_bad or 1) - 1
    return int(result.model_dump().get("signed", result.entries))


def test_entries_that_nothing_signed_are_told_apart() -> None:
    tail = [{**line, "idempotency_key": f"forged:{line['idempotency_key']}"} for line in record()[-3:]]
    result = verify(rehashed([*record(), *tail], SIZE + 1), signed(record(), [20, SIZE]), public(PLATFORM))
    assert vouched(result) == SIZE
    # The same from the other side: the last checkpoint taken away.
    result = verify(record(), signed(record(), [20, SIZE])[:1], public(PLATFORM))
    assert vouched(result) == 20


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**60, "\ud800"])
def test_a_value_without_a_canonical_form_is_a_bad_entry_not_a_crash(value: Any) -> None:
    lines = record()
    lines[6]["payload"]["extra"] = value
    result = verify(lines, signed(record(), [SIZE]), public(PLATFORM))
    assert not result.verified
    assert result.first_bad == 7


# --- reading files


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1}\n{"a": \n', ":2: not JSON"),
        ('{"a": 1}\n\n[1]\n', ":3: not a JSON object"),
        ('"text"\n', ":1: not a JSON object"),
        ("\ufeff{}\n", ":1: not JSON"),
        ("[" * 100_000, ":1: not"),
    ],
)
def test_a_file_that_is_not_json_lines_is_bad_input_naming_the_line(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "export.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=problem) as caught:
        read_json_lines(path)
    assert len(str(caught.value).splitlines()) == 1
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "binary", tmp_path / "missing", tmp_path, Path("x" * 300)):
        with pytest.raises(BadInput, match="cannot be read"):
            read_json_lines(path)


def test_checkpoints_and_entries_are_checked_for_form(tmp_path: Path) -> None:
    path = tmp_path / "export.checkpoint"
    path.write_text('{"origin": "delivery-1"}\n')
    with pytest.raises(BadInput, match="not a checkpoint file: size: Field required"):
        read_checkpoints(path)
    lines = record()
    lines[4]["attempt"] = "first"
    with pytest.raises(BadInput, match=r"here: entry 5 is not an entry: attempt:"):
        parse_entries(lines, "here")


@settings(deadline=None, max_examples=40)
@given(text=st.text())
def test_any_text_in_a_record_survives_its_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("lines") / "export.jsonl"
    path.write_bytes(canonical({"text": text, text: 1}) + b"\n" + canonical({"text": text}) + b"\n")
    assert read_json_lines(path) == [{"text": text, text: 1}, {"text": text}]
