"""Identities: one key per name, readable by the owner only, names that stay in their folder."""

import json
import multiprocessing
import multiprocessing.queues
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import at_once, one_of

from delivery_plane.errors import BadInput, MachineUnfit
from delivery_plane.identity import Identities, Identity, signed_by

FORK = multiprocessing.get_context("fork")

A = "a" * 63


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "identities").mkdir()
    return tmp_path / "identities"


def test_a_key_is_readable_by_its_owner_only_whatever_the_umask(folder: Path) -> None:
    old = os.umask(0)
    try:
        made = Identities(folder).new("alice", "approver")
    finally:
        os.umask(old)
    file = one_of(list(folder.iterdir()))
    assert file.name == "alice.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert Identities(folder).get("alice") == made


def test_a_taken_name_is_refused_and_its_key_stays(folder: Path) -> None:
    made = Identities(folder).new("alice", "approver")
    with pytest.raises(BadInput, match="identity alice exists"):
        Identities(folder).new("alice", "operator")
    assert Identities(folder).get("alice") == made
    assert Identities(folder).get_or_new("alice", "operator") == made
    assert [path.name for path in folder.iterdir()] == ["alice.json"]


def test_two_identities_have_two_keys_and_are_listed_by_name(folder: Path) -> None:
    identities = Identities(folder)
    bob, alice = identities.new("bob", "seat"), identities.new("alice", "approver")
    assert identities.all() == [alice, bob]
    assert alice.public_key != bob.public_key


NO_NAMES = [
    "",
    "Alice",
    "a b",
    "-a",
    "../a",
    "a/b",
    "/etc/passwd",
    ".",
    "..",
    "a.json",
    "a\0",
    "é",
    A + "a",
    "a_b",
]


@pytest.mark.parametrize(
    "name",
    [
        *NO_NAMES,
        "a\n",
    ],
)
def test_a_name_that_could_leave_the_folder_is_refused(folder: Path, name: str) -> None:
    for attempt in (
        lambda: Identities(folder).new(name, "seat"),
        lambda: Identities(folder).get(name),
        lambda: Identities(folder).get_or_new(name, "seat"),
    ):
        with pytest.raises(BadInput, match="identity name") as caught:
            attempt()
        assert len(str(caught.value).splitlines()) == 1
    assert [path.name for path in folder.parent.rglob("*")] == ["identities"]


@pytest.mark.parametrize("name", ["a", "0", "a-b", "seat-reference", A])
def test_a_plain_name_is_taken(folder: Path, name: str) -> None:
    assert Identities(folder).new(name, "seat").name == name


def test_an_unknown_identity_is_bad_input_with_the_mend(folder: Path) -> None:
    with pytest.raises(BadInput, match="identity new bob"):
        Identities(folder).get("bob")


def test_a_place_that_cannot_be_written_is_an_unfit_machine(tmp_path: Path) -> None:
    with pytest.raises(MachineUnfit, match="cannot be written"):
        Identities(tmp_path / "missing").new("alice", "seat")


# --- races


def test_threads_that_need_an_identity_at_once_get_the_same_key(folder: Path) -> None:
    for number in range(6):
        name = f"scripted-{number}"
        found = at_once(8, lambda _, name=name: Identities(folder).get_or_new(name, "approver"))
        assert found == [Identities(folder).get(name)] * 8


def test_threads_that_make_an_identity_at_once_make_one(folder: Path) -> None:
    for number in range(6):
        name = f"new-{number}"
        found = at_once(8, lambda _, name=name: Identities(folder).new(name, "approver"))
        made = one_of([item for item in found if isinstance(item, Identity)])
        assert made == Identities(folder).get(name)
        assert sum(isinstance(item, BadInput) for item in found) == 7
    assert all(path.suffix == ".json" for path in folder.iterdir())


def make(folder: Path, answer: multiprocessing.queues.SimpleQueue[str]) -> None:
    answer.put(Identities(folder).get_or_new("shared", "approver").public_key)


def test_processes_that_need_an_identity_at_once_get_the_same_key(folder: Path) -> None:
    answers = FORK.SimpleQueue()
    processes = [FORK.Process(target=make, args=(folder, answers)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=30)
    assert [process.exitcode for process in processes] == [0] * 6
    assert {answers.get() for _ in processes} == {Identities(folder).get("shared").public_key}


# --- damaged files


def damage(folder: Path, damaged: str | dict[str, object]) -> None:
    """Put a text in the file's place, or change some of its fields."""
    file = folder / "alice.json"
    file.write_text(
        damaged if isinstance(damaged, str) else json.dumps({**json.loads(file.read_text()), **damaged})
    )


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        '{"name": "alice", "role": "appr',
        "[]",
        "null",
        '{"name": "alice"}',
        {"role": "king"},
        {"note": "x"},
        {"private_key": None},
        {"private_key": "no hex"},
        {"private_key": "ab"},
        {"public_key": "11" * 32},
        {"name": "bob"},
    ],
    ids=str,
)
def test_a_damaged_file_is_bad_input_in_one_line(folder: Path, damaged: str | dict[str, object]) -> None:
    Identities(folder).new("alice", "approver")
    damage(folder, damaged)
    for attempt in (lambda: Identities(folder).get("alice"), lambda: Identities(folder).all()):
        with pytest.raises(BadInput, match=r"alice\.json: not an identity file") as caught:
            attempt()
        assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_file_never_shows_the_key(folder: Path) -> None:
    made = Identities(folder).new("alice", "approver")
    damage(folder, {"role": "king", "private_key": [made.private_key]})
    with pytest.raises(BadInput) as caught:
        Identities(folder).get("alice")
    assert made.private_key not in str(caught.value)


def test_a_binary_file_is_bad_input(folder: Path) -> None:
    (folder / "alice.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not an identity file"):
        Identities(folder).get("alice")


def test_a_folder_in_the_file_s_place_is_bad_input(folder: Path) -> None:
    (folder / "alice.json").mkdir()
    with pytest.raises((BadInput, MachineUnfit)):
        Identities(folder).get("alice")


# --- signatures


@settings(deadline=None, max_examples=30)
@given(message=st.binary(max_size=50), other=st.binary(max_size=50), flipped=st.integers(0, 511))
def test_a_signature_is_good_for_its_key_and_its_message_only(
    tmp_path_factory: pytest.TempPathFactory, message: bytes, other: bytes, flipped: int
) -> None:
    identities = Identities(tmp_path_factory.mktemp("identities"))
    alice, bob = identities.new("alice", "approver"), identities.new("bob", "approver")
    signature = alice.sign(message)
    assert signed_by(alice.public_key, signature, message)
    assert signed_by(alice.public_key, signature, other) == (message == other)
    assert not signed_by(bob.public_key, signature, message)
    torn = (int(signature, 16) ^ (1 << flipped)).to_bytes(64, "big").hex()
    assert not signed_by(alice.public_key, torn, message)


@pytest.mark.parametrize(
    ("key", "signature"), [("", ""), ("no hex", "00"), ("00" * 32, "no hex"), ("ab", "00" * 64)]
)
def test_what_is_no_key_or_signature_signs_nothing(key: str, signature: str) -> None:
    assert not signed_by(key, signature, b"message")
