"""What is typed wrongly or fed in damaged: one line, the right exit code, no traceback, nothing half-written."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess import LONG, empty_place, make_used_home, refused, run, snapshot
from ledgers import DELIVERY, unlocked

from delivery_plane.entry import entry_hash
from delivery_plane.settings import Home
from workflows.platform import Platform, open_platform

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_place(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def used_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_used_home(tmp_path_factory.mktemp("used") / "home")


@pytest.fixture
def parts(place: Path, used_home: Path) -> Iterator[Platform]:
    """A copy of that home in the working folder, where commands look for one."""
    shutil.copytree(used_home, place / ".delivery-plane")
    made = open_platform(Home(place / ".delivery-plane"))
    yield made
    made.ledger.close()


# --- words that are wrong, on a machine where nothing was run yet

ORDER = ("deliver", "support-intents")

WRONG: list[tuple[tuple[str, ...], str]] = [
    (("nope",), 'Unknown command "nope"'),
    (("deliveries", "nope"), "nope"),
    (("deliveries", "show"), "DELIVERY"),
    (("deliver",), "SCENARIO"),
    (("deliver", "nope"), "no scenario 'nope'"),
    (("deliver", "./nope"), "no scenario './nope'"),
    ((*ORDER, "--seat", "nope"), "no seat 'nope'; there are: reference"),
    ((*ORDER, "--fault", "nope"), "no such fault; known: label-shuffle"),
    ((*ORDER, "--fault", "nowhere.py:Mine"), "nowhere.py: cannot be read"),
    ((*ORDER, "--fault", "nowhere.py"), "or give FILE.py:Name"),
    ((*ORDER, "--fault", f"{__file__}:Nope"), "defines no class 'Nope'"),
    ((*ORDER, "--fault", "nul\0.py:Mine"), "or give FILE.py:Name"),
    ((*ORDER, "--bogus"), "--bogus"),
    ((*ORDER, "extra"), "extra"),
    ((*ORDER, "--base", "/nope"), "--base /nope: no model there"),
    ((*ORDER, "--base", "."), "--base .: no model there"),
    ((*ORDER, "--seed", "x"), "--seed"),
    ((*ORDER, "--seed", "-1"), "seed"),
    ((*ORDER, "--seed", str(2**40)), "seed"),
    ((*ORDER, "--device", "tpu"), "--device"),
    ((*ORDER, "--plane", "moon"), "--plane"),
    ((*ORDER, "--on-flag", "pray"), "--on-flag"),
    ((*ORDER, "--approver", "me"), "--approver"),
    ((*ORDER, "--id", "Bad Id"), "delivery_id"),
    ((*ORDER, "--id", "../../etc"), "delivery_id"),
    ((*ORDER, "--id", "ab"), "delivery_id"),
    ((*ORDER, "--id", LONG), "delivery_id"),
    (("scenarios", "show", "nope"), "no scenario 'nope'"),
    (("worker",), "--queue"),
    (("worker", "--queue", "nope"), "--queue"),
    (("worker", "--queue", "governance"), "--address"),
    (("worker", "--queue", "compute"), "--address"),
    (("worker", "--queue", "governance", "--address", "a:1", "--deployment", "x"), "--build-id"),
    (("worker", "--queue", "governance", "--address", "a:1", "--tls-server-ca", "/nope"), "/nope"),
    (("rejudge", "nope.jsonl"), "nope.jsonl: cannot be read"),
    (("rejudge", "."), "cannot be read"),
    (("rejudge", LONG), "cannot be read"),
    (("ledger", "verify", "nope.jsonl"), "nope.pub: no such public key"),
    (("ledger", "verify", "nope.jsonl", "--key", "nope"), "nope: no such public key"),
    (("ledger", "verify"), "no ledger here"),
    (("ledger", "show", "x"), "no ledger here"),
    (("ledger", "export", "x", "--out", "y.jsonl"), "no ledger here"),
    (("ledger", "export", "x"), "--out"),
    (("deliveries", "list"), "no ledger here"),
    (("deliveries", "watch", "x"), "no ledger here"),
    (("gates", "list"), "no ledger here"),
    (("gates", "approve", "x", "--as", "alice"), "no ledger here"),
    (("gates", "approve", "x"), "--as"),
    (("identity", "new", "alice"), "--role"),
    (("identity", "new", "alice", "--role", "king"), "--role"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[" ".join(row[0])[:50] for row in WRONG])
def test_a_wrong_word_is_one_line_and_nothing_is_made(
    place: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(*arguments)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("scenarios", "show", LONG),
        ("deliver", LONG),
        (*ORDER, "--base", LONG),
        ("ledger", "verify", LONG),
        ("ledger", "verify", "."),
        ("ledger", "verify", ""),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_a_path_that_cannot_be_is_one_line_too(place: Path, arguments: tuple[str, ...]) -> None:
    refused(*arguments)
    assert list(place.iterdir()) == []


# --- settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not toml [", "delivery-plane.toml"),
        ("home = 5", "home"),
        ("nope = 1", "nope"),
        ("[deadlines]\nspend_seconds = 'x'", "deadlines.spend_seconds"),
        ("[deadlines]\nspend_seconds = 0", "deadlines.spend_seconds"),
        ("[deadlines]\nspent_seconds = 5", "deadlines.spent_seconds"),
        ("deadlines = 5", "deadlines"),
        ("\xff\xfe", "delivery-plane.toml"),
    ],
)
@pytest.mark.parametrize("command", ["deliveries list", "identity list", "deliver support-intents", "up"])
def test_a_bad_settings_file_is_named(place: Path, text: str, said: str, command: str) -> None:
    (place / "delivery-plane.toml").write_bytes(text.encode("latin-1"))
    assert said in refused(*command.split())
    assert [path.name for path in place.iterdir()] == ["delivery-plane.toml"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DELIVERY_PLANE_DEADLINES__SPEND_SECONDS", "-1", "deadlines.spend_seconds"),
        ("DELIVERY_PLANE_DEADLINES__SPEND_SECONDS", "soon", "deadlines.spend_seconds"),
        ("DELIVERY_PLANE_DEADLINES__SPENT", "1", "deadlines.spent"),
        ("DELIVERY_PLANE_DEADLINES", "[]", "deadlines"),
        (
            "DELIVERY_PLANE_DEADLINES", "soon", "DELIVERY_PLANE_"
        ),
    ],
)  # fmt: skip
def test_a_bad_variable_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    assert said in refused("identity", "list")
    assert list(place.iterdir()) == []


HOMES = ["file", "file/home", "/proc/no-such-place", "/dev/null"]


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("command", ["identity list", "identity new bob --role seat", "doctor --json"])
def test_a_home_that_cannot_be_made_is_an_unfit_machine(
    place: Path, monkeypatch: pytest.MonkeyPatch, home: str, command: str
) -> None:
    (place / "file").write_text("mine")
    monkeypatch.setenv("DELIVERY_PLANE_HOME", home)
    if command.startswith("doctor"):
        ran = run(*command.split())
        assert (ran.code, ran.err) == (3, "")
        found = {line["check"]: line for line in json.loads(ran.out)}
        assert not found["home"]["fit"]
        assert "DELIVERY_PLANE_HOME" in found["home"]["mend"]
    else:
        assert "set DELIVERY_PLANE_HOME to a writable folder" in refused(*command.split(), code=3)
    assert snapshot(place) == {"file": b"mine"}


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("command", ["deliveries list", "gates list", "ledger verify", "deliveries show x"])
def test_a_home_that_is_none_holds_no_ledger(
    place: Path, monkeypatch: pytest.MonkeyPatch, home: str, command: str
) -> None:
    (place / "file").write_text("mine")
    monkeypatch.setenv("DELIVERY_PLANE_HOME", home)
    assert "no ledger here" in refused(*command.split())
    assert snapshot(place) == {"file": b"mine"}


def test_a_home_with_a_name_that_cannot_be_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELIVERY_PLANE_HOME", LONG)
    refused("identity", "list", code=3)
    refused("deliveries", "list")


# --- on a home where deliveries were run

UNKNOWN: list[tuple[tuple[str, ...], str]] = [
    (("deliveries", "show", "nope"), "no delivery nope"),
    (("deliveries", "watch", "nope"), "no delivery nope"),
    (("deliveries", "cancel", "nope"), "no delivery nope"),
    (("deliveries", "cancel", DELIVERY), "has ended already"),
    (("deliveries", "fetch", "nope", "out"), "no delivery nope"),
    (("deliveries", "fetch", "delivery-2", "out"), "still open"),
    (("deliveries", "fetch", DELIVERY, "."), "exists"),
    (("deliveries", "fetch", DELIVERY, "out"), "cannot be written"),
    (("deliveries", "show", "../../etc/passwd"), "no delivery"),
    (("deliveries", "show", "' OR 1=1 --"), "no delivery"),
    (("ledger", "show", "nope"), "no delivery nope"),
    (("ledger", "show", DELIVERY, "--entry", "999"), "has no entry 999; it has"),
    (("ledger", "show", DELIVERY, "--entry", "0"), "has no entry 0"),
    (("ledger", "checkpoint", "nope"), "no delivery nope"),
    (("ledger", "export", "nope", "--out", "x.jsonl"), "no delivery nope"),
    (("ledger", "export", DELIVERY, "--out", "/proc/no-such/x.jsonl"), "cannot be written"),
    (("ledger", "export", DELIVERY, "--out", ".delivery-plane"), "cannot be written"),
    (("gates", "show", "nope"), "no gate nope"),
    (("gates", "approve", "nope", "--as", "alice", "--reason", "x"), "no gate nope"),
    (("gates", "approve", "spend-2", "--as", "nobody", "--reason", "x"), "no identity nobody"),
    (("gates", "reject", "spend-2", "--as", "../alice", "--reason", "x"), "identity name"),
    (("identity", "new", "alice", "--role", "seat"), "identity alice exists"),
    (("identity", "new", "platform", "--role", "operator"), "identity platform exists"),
    (("identity", "new", "../alice", "--role", "seat"), "identity name '../alice'"),
    (("identity", "new", "Alice", "--role", "seat"), "identity name 'Alice'"),
    (("identity", "new", "", "--role", "seat"), "identity name ''"),
    (("identity", "new", LONG, "--role", "seat"), "identity name"),
]


@pytest.mark.parametrize(("arguments", "said"), UNKNOWN, ids=[" ".join(row[0])[:50] for row in UNKNOWN])
def test_an_unknown_name_is_one_line_and_nothing_changes(
    parts: Platform, place: Path, arguments: tuple[str, ...], said: str
) -> None:
    before = snapshot(place)
    entries = len(parts.ledger.entries("delivery-2"))
    assert said in refused(*arguments)
    assert snapshot(place) == before
    assert len(parts.ledger.entries("delivery-2")) == entries


@pytest.mark.parametrize(
    "arguments",
    [
        ("deliveries", "show", "two\nlines"),
        ("gates", "show", "two\nlines"),
        ("ledger", "export", DELIVERY, "--out", "/proc/two\nlines"),
        ("ledger", "show", "escape\x1b[2J"),
    ],
    ids=["delivery", "gate", "file", "escape"],
)
def test_a_name_with_a_new_line_is_said_in_one_line(parts: Platform, arguments: tuple[str, ...]) -> None:
    assert parts.home.ledger.exists()
    assert refused(*arguments).rstrip("\n").isprintable()


@pytest.mark.parametrize(
    "command", ["deliveries show", "ledger show", "ledger checkpoint", "deliveries watch"]
)
def test_a_name_that_is_no_text_is_bad_input(parts: Platform, command: str) -> None:
    assert parts.home.ledger.exists()
    refused(*command.split(), "caf\udce9")


@pytest.mark.parametrize("out", [".", "/", ""])
def test_an_export_to_no_name_is_one_line(parts: Platform, out: str) -> None:
    assert parts.home.ledger.exists()
    refused("ledger", "export", DELIVERY, "--out", out)


# --- decisions


def _digest(parts: Platform) -> str:
    return parts.gates.find("spend-2").gate.digest


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("--as", "alice"), "no_reason"),
    (("--as", "alice", "--reason", "  "), "no_reason"),
    (("--as", "seat-test", "--reason", "x"), "seat_holder"),
    (("--as", "platform", "--reason", "x"), "not_an_approver"),
    (("--as", "alice", "--reason", "x", "--digest", "0" * 64), "changed_bytes"),
]


@pytest.mark.parametrize("verb", ["approve", "reject"])
@pytest.mark.parametrize(("arguments", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_a_refused_decision_is_exit_one_and_on_record(
    parts: Platform, verb: str, arguments: tuple[str, ...], why: str
) -> None:
    assert f"decision refused ({why})" in refused("gates", verb, "spend-2", *arguments, code=1)
    last = parts.ledger.entries("delivery-2")[-1]
    assert (last.kind, last.payload["why"]) == ("gate_decision_refused", why)
    assert [waiting.gate.gate_id for waiting in parts.gates.waiting()] == ["spend-2"]


def test_a_taken_decision_is_exit_zero_and_a_second_is_refused(parts: Platform) -> None:
    took = run("gates", "approve", "spend-2", "--as", "alice", "--reason", "fair", "--digest", _digest(parts))
    assert took.code == 0
    assert took.out == "spend-2: approved by alice, recorded and signed\n"
    assert len(took.err.splitlines()) == 1  # nobody runs to be woken: that is said, and is no error
    assert "already_decided" in refused(
        "gates", "reject", "spend-2", "--as", "alice", "--reason", "no", code=1
    )
    assert "approved by alice: fair" in run("gates", "show", "spend-2").out


def test_a_reason_that_is_no_text_is_one_line(parts: Platform) -> None:
    entries = len(parts.ledger.entries("delivery-2"))
    refused("gates", "approve", "spend-2", "--as", "alice", "--reason", "caf\udce9")
    assert len(parts.ledger.entries("delivery-2")) == entries


def test_a_reason_with_escapes_is_shown_without_their_effect(parts: Platform) -> None:
    hostile = "fine\x1b[2J\x1b]0;x\x07\x9b31m[bold]"
    assert run("gates", "approve", "spend-2", "--as", "alice", "--reason", hostile).code == 0
    assert parts.ledger.entries("delivery-2")[-1].payload["reason"] == hostile
    shown = run("gates", "show", "spend-2").out
    assert "fine" in shown
    assert "[bold]" in shown
    assert "\x1b" not in shown


# --- damaged files


@pytest.fixture
def export(parts: Platform, place: Path) -> Path:
    """The closed delivery, exported beside its checkpoints and key."""
    path = place / "export.jsonl"
    parts.ledger.export(DELIVERY, path)
    return path


def test_a_good_export_verifies_and_is_judged_the_same(export: Path) -> None:
    verified = run("ledger", "verify", str(export))
    assert (verified.code, verified.err) == (0, "")
    assert "verified: " in verified.out
    rejudged = run("rejudge", str(export))
    assert (rejudged.code, rejudged.err) == (0, "")
    assert "all identical" in rejudged.out


BYTES: list[tuple[bytes, str]] = [
    (b"no JSON", "not JSON"),
    (b"{}\n", "Field required"),
    (b"[]\n", "not a JSON object"),
    (b"5\n", "not a JSON object"),
    (b"NaN\n", "not JSON"),
    (b'{"delivery_id": "x"', "not JSON"),
    (b"\xff\xfe\x00", "cannot be read"),
    (b"PK\x03\x04", "not JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "said"), BYTES, ids=str)
def test_an_export_that_is_none_is_one_line(export: Path, content: bytes, said: str) -> None:
    export.write_bytes(content)
    assert said in refused("rejudge", str(export))
    checkpoint = export.with_suffix(".checkpoint")
    checkpoint.write_bytes(content)
    assert said in refused("ledger", "verify", str(export))
    checkpoint.unlink()
    assert "export.checkpoint: no such checkpoint" in refused("ledger", "verify", str(export))


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_export_holds_nothing_to_judge_and_does_not_verify(export: Path, content: bytes) -> None:
    export.write_bytes(content)
    assert "no verdict in it" in refused("rejudge", str(export))
    ran = run("ledger", "verify", str(export))
    assert ran.code == 1
    assert "NOT VERIFIED: first bad entry 1: missing" in ran.out


def changed(export: Path, number: int, change: Callable[[dict[str, Any]], object]) -> None:
    lines = [json.loads(line) for line in export.read_text().split("\n") if line]
    change(lines[number - 1])
    export.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_tampered_export_names_the_entry_and_exits_one(export: Path) -> None:
    changed(export, 7, lambda line: line["payload"].update(rows=1))
    ran = run("ledger", "verify", str(export))
    assert ran.code == 1
    assert "NOT VERIFIED: first bad entry 7: content does not match its hash" in ran.out
    (found,) = json.loads(run("ledger", "verify", str(export), "--json").out)
    assert (found["verified"], found["first_bad"]) == (False, 7)


def test_entries_appended_after_the_signed_end_do_not_verify(export: Path) -> None:
    last = json.loads(export.read_text().split("\n")[-2])
    forged = {**last, "number": last["number"] + 1, "prev_hash": last["hash"], "idempotency_key": "forged"}
    with export.open("a") as file:
        file.write(json.dumps({**forged, "hash": entry_hash(forged)}) + "\n")
    ran = run("ledger", "verify", str(export))
    assert ran.code == 1
    assert "appended after the delivery was closed and signed" in ran.out
    (found,) = json.loads(run("ledger", "verify", str(export), "--json").out)
    assert found["signed"] == found["entries"] - 1 == last["number"]


def test_a_key_from_elsewhere_does_not_verify(export: Path, place: Path) -> None:
    (place / "other.pub").write_text("ab" * 32)
    assert run("ledger", "verify", str(export), "--key", "other.pub").code == 1


@pytest.mark.parametrize("content", [b"", b"no hex", b"ab" * 31, b"\xc3\xa9" * 32])
def test_a_key_that_is_none_is_one_line(export: Path, content: bytes) -> None:
    export.with_suffix(".pub").write_bytes(content)
    assert "export.pub: no public key in it" in refused("ledger", "verify", str(export))


def test_an_export_nested_without_end_is_one_line(export: Path) -> None:
    export.write_text("[" * 100_000)
    refused("rejudge", str(export))


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.update(payload={"kind": "nothing", "v": 1}),
        lambda line: line["payload"].update(nonsense=1),
        lambda line: line.update(payload={}),
        lambda line: line.update(kind="nothing"),
        lambda line: line.update(stage=None),
        lambda line: line.update(attempt=7),
    ],
)
@pytest.mark.parametrize(
    "kind", ["delivery_opened", "data_profiled", "plan", "stage", "acceptance", "delivery_closed"]
)
def test_an_entry_that_cannot_be_read_is_no_traceback(
    export: Path, change: Callable[[dict[str, Any]], object], kind: str
) -> None:
    lines = [json.loads(line) for line in export.read_text().split("\n") if line]
    changed(export, next(line["number"] for line in lines if line["kind"] == kind), change)
    ran = run("rejudge", str(export))
    assert ran.code in (0, 1, 2)
    assert "Traceback" not in ran.err + ran.out
    if ran.code == 2:
        assert len(ran.err.splitlines()) == 1
    else:
        assert ("all identical" in ran.out) == (ran.code == 0)


# --- a damaged home


def test_a_tampered_ledger_is_named_and_exits_one(parts: Platform) -> None:
    unlocked(parts).execute(
        "UPDATE entry SET actor = 'mallory' WHERE delivery_id = 'delivery-1' AND number = 5"
    )
    ran = run("ledger", "verify")
    assert ran.code == 1
    assert "delivery-1: NOT VERIFIED: first bad entry 5" in ran.out


def test_a_delivery_removed_from_the_ledger_is_missed(parts: Platform) -> None:
    unlocked(parts).execute("DELETE FROM entry WHERE delivery_id = 'delivery-1'")
    ran = run("ledger", "verify")
    assert ran.code == 1
    assert "delivery-1: NOT VERIFIED: first bad entry 1: missing" in ran.out


def _no_database(home: Home) -> None:
    home.ledger.write_text("These are minutes of a meeting, no database. " * 30)


def _folder_as_database(home: Home) -> None:
    home.ledger.mkdir(parents=True)


@pytest.mark.parametrize("damage", [_no_database, _folder_as_database])
@pytest.mark.parametrize("command", ["deliveries list", "ledger verify", "identity list"])
def test_a_ledger_that_is_no_database_is_one_line(
    place: Path, damage: Callable[[Home], None], command: str
) -> None:
    home = Home(place / ".delivery-plane")
    home.identities.mkdir(parents=True)
    damage(home)
    before = snapshot(home.root)["ledger.sqlite"]
    said = refused(*command.split(), code=3)
    assert "ledger.sqlite" in said
    assert "http" not in said
    assert snapshot(home.root)["ledger.sqlite"] == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"name": "platform", "role": "platform", "public_key": "", "private_key": "no hex", "created_at": ""}',
    ],
    ids=["empty", "no fields", "no key"],
)
def test_a_damaged_platform_key_is_one_line(place: Path, text: str) -> None:
    home = Home(place / ".delivery-plane").create()
    (home.identities / "platform.json").write_text(text)
    assert "platform.json: not an identity file" in refused("identity", "list")


def test_a_stray_file_among_the_identities_is_one_line(parts: Platform) -> None:
    (parts.home.identities / "Bob Smith.json").write_text("{}")
    assert "Bob Smith" in refused("identity", "list")


# --- anything at all

COMMANDS = [
    ("identity", "list"), ("identity", "new"), ("deliveries", "list"), ("deliveries", "show"),
    ("deliveries", "fetch"), ("ledger", "verify"), ("ledger", "show"), ("ledger", "export"),
    ("ledger", "checkpoint"), ("gates", "list"), ("gates", "show"), ("gates", "approve"), ("rejudge",),
    ("scenarios", "list"), ("scenarios", "show"), ("deliver",), ("worker", "--queue"),
]  # fmt: skip
KNOWN = [
    "--json",
    "--as",
    "--reason",
    "--role",
    "seat",
    "alice",
    "--out",
    "x.jsonl",
    "--entry",
    "--key",
    "1",
    "-1",
    "--",
    "-",
    "--no-json",
    "--json=maybe",
    "nope",
    "delivery-1",
    "spend-2",
    "--digest",
]
PRINTED = st.characters(categories=("L", "N", "P", "S"), exclude_characters="./")
WORDS = st.sampled_from(KNOWN) | st.text(PRINTED, min_size=1, max_size=8)


@settings(deadline=None, max_examples=120)
@given(command=st.sampled_from(COMMANDS), words=st.lists(WORDS, max_size=4))
def test_no_words_give_a_traceback_or_a_second_line(command: tuple[str, ...], words: list[str]) -> None:
    ran = run(*command, *words)
    assert ran.code in (0, 1, 2)
    if ran.code == 2:
        assert len(ran.err.splitlines()) == 1, ran.err
        assert ran.err.startswith("delivery-plane: ")
    assert "Traceback" not in ran.err + ran.out
