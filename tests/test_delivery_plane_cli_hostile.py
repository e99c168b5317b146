"""Files, folders and addresses that are broken or hostile: one line, exit 2 or 3, and nothing left behind."""

import json
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess import LONG, Ran, empty_place, make_used_home, one_line_of, refused, run, snapshot
from ledgers import DELIVERY, raw

from delivery_plane.settings import Home
from workflows.platform import open_platform

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:Cyclopts application invoked")]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_place(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def used_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_used_home(tmp_path_factory.mktemp("used") / "home")


@pytest.fixture(scope="module")
def exported(used_home: Path) -> Path:
    """An export of the closed delivery, beside its checkpoints and key."""
    parts = open_platform(Home(used_home))
    parts.ledger.export(DELIVERY, used_home.parent / "export.jsonl")
    parts.ledger.close()
    return used_home.parent / "export.jsonl"


@pytest.fixture
def export(place: Path, exported: Path) -> Path:
    """A copy of it in the working folder."""
    for suffix in (".jsonl", ".checkpoint", ".pub"):
        shutil.copy(exported.with_suffix(suffix), place)
    return place / "export.jsonl"


@pytest.fixture
def home(place: Path, used_home: Path) -> Path:
    """A copy of the used home where commands look for one, closed."""
    return Path(shutil.copytree(used_home, place / ".delivery-plane"))


# --- files that are none of what they should be


def _write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


FILES: dict[str, Callable[[Path], object]] = {
    "binary": _write(bytes(range(256)) * 40),
    "not UTF-8": _write(b"caf\xe9 = 1\n"),
    "UTF-16": _write('{"a": 1}\n'.encode("utf-16")),
    "a byte order mark": _write(b'\xef\xbb\xbf{"a": 1}\n'),
    "NUL": _write(b"\0" * 2000),
    "a NUL in text": _write(b'{"a": "\0"}\n'),
    "cut short": _write(b'{"delivery_id": "x", "numb'),
    "NaN": _write(b'{"number": NaN}\n'),
    "minus infinity": _write(b'{"number": -Infinity}\n'),
    "1e400": _write(b'{"number": 1e400}\n'),
    "a number of 5000 digits": _write(b'{"number": ' + b"1" * 5000 + b"}\n"),
    "a million lists": _write(b"[" * 10**6),
    "a hundred thousand objects": _write(b'{"a":' * 10**5),
    "a thousand lists, closed": _write(b'{"a": ' + b"[" * 1000 + b"]" * 1000 + b"}\n"),
    "a hundred lists, closed": _write(b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}\n"),
    "a repeated name": _write(b'{"number": 1, "number": 2}\n'),
    "a lone surrogate": _write(b'{"delivery_id": "\\ud800"}\n'),
    "a string": _write(b'"text"\n'),
    "a list": _write(b"[1, 2]\n"),
    "CRLF": _write(b'{"a": 1}\r\n{"b": 2}\r\n'),
    "CSV": _write(b"text,label\r\nhello,greeting\r\n"),
    "escapes": _write(b"\x1b]0;title\x07\x1b[2J\n"),
    "a folder": Path.mkdir,
    "a pipe": lambda path: os.mkfifo(path),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a full device": lambda path: path.symlink_to("/dev/full"),
    "a loop of links": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a file that cannot be read": lambda path: path.symlink_to("/proc/self/mem"),
    "a socket": lambda path: _socket(path),
}


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:  # a socket's path has room for 108 bytes only
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        listener.close()
    finally:
        os.close(folder)


READERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "export": ("export.jsonl", ("rejudge", "export.jsonl")),
    "record": ("export.jsonl", ("ledger", "verify", "export.jsonl")),
    "checkpoint": ("export.checkpoint", ("ledger", "verify", "export.jsonl")),
    "other checkpoint": ("other", ("ledger", "verify", "export.jsonl", "--checkpoint", "other")),
    "key": ("other", ("ledger", "verify", "export.jsonl", "--key", "other")),
    "settings": ("delivery-plane.toml", ("deliveries", "list")),
    "platform key": (".delivery-plane/identities/platform.json", ("identity", "list")),
    "approver": (
        ".delivery-plane/identities/alice.json",
        ("gates", "approve", "spend-2", "--as", "alice", "--reason", "x"),
    ),
    "authority": (
        "other",
        ("worker", "--queue", "compute", "--address", "127.0.0.1:1", "--tls-server-ca", "other"),
    ),
    "scenario": ("mine/scenario.toml", ("scenarios", "show", "./mine")),
}
SOUND = {("record", what) for what in ("1e400", "a lone surrogate", "CRLF")}
"""Lines of JSON, if not of entries: that is a record which does not verify, exit 1."""


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_none_of_what_it_should_be(
    place: Path, export: Path, home: Path, reader: str, what: str
) -> None:
    name, command = READERS[reader]
    path = place / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    FILES[what](path)
    before = snapshot(place)
    ran = run(*command)
    if (reader, what) in SOUND:
        assert ran.code == 1
        assert "NOT VERIFIED: first bad entry 1" in ran.out
    else:
        assert path.name in one_line_of(ran, 2)
    assert snapshot(place) == before
    assert (export.exists(), home.exists()) == (True, True) or what in (
        "a loop of links",
        "a link to nothing",
    )


def test_fifty_megabytes_in_one_line(export: Path) -> None:
    export.write_bytes(b'{"delivery_id": "' + b"x" * 50_000_000 + b'"}\n')
    assert "export.jsonl: entry 1 is not an entry" in refused("rejudge", str(export))
    export.write_bytes(b"[" + b"1," * 25_000_000)
    assert "not JSON" in refused("ledger", "verify", str(export))


def test_a_file_larger_than_any_export_is_not_read(export: Path) -> None:
    os.truncate(export, 300 * 1024**2)
    assert "above 256 MiB" in refused("rejudge", str(export))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_an_export_cut_in_the_middle(place: Path, export: Path, share: float) -> None:
    content = export.read_bytes()
    export.write_bytes(content[: int(len(content) * share)])
    before = snapshot(place)
    assert "not JSON" in refused("rejudge", str(export))
    assert "not JSON" in refused("ledger", "verify", str(export))
    assert snapshot(place) == before


def test_an_export_cut_between_two_lines_does_not_verify(export: Path) -> None:
    export.write_text("".join(export.read_text().splitlines(keepends=True)[:20]))
    ran = run("ledger", "verify", str(export))
    assert ran.code == 1
    assert "first bad entry 21: missing" in ran.out


@pytest.mark.parametrize("field", ["hash", "origin", "signature", "since"])
def test_a_checkpoint_of_wrong_types(export: Path, field: str) -> None:
    path = export.with_suffix(".checkpoint")
    line = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps({**line, field: {"a": []}}) + "\n")
    assert "export.checkpoint: not a checkpoint file" in refused("ledger", "verify", str(export))


# --- settings

SETTINGS: dict[str, tuple[str, str]] = {
    "unknown field": ("homes = 'x'", "homes"),
    "a list for home": ("home = []", "home"),
    "a date for home": ("home = 2026-01-01", "home"),
    "negative deadline": ("[deadlines]\nspend_seconds = -1", "deadlines.spend_seconds"),
    "deadline that is none": ("[deadlines]\nflag_seconds = nan", "deadlines.flag_seconds"),
    "endless deadline": ("[deadlines]\nrelease_seconds = inf", "deadlines.release_seconds"),
    "deadline of a thousand years": ("[deadlines]\nclaim_seconds = 31557600000", "deadlines.claim_seconds"),
    "deadline of a huge number": (f"[deadlines]\nspend_seconds = {10**30}", "deadlines.spend_seconds"),
    "a truth for a deadline": ("[deadlines]\nspend_seconds = []", "deadlines.spend_seconds"),
    "a name twice": ("home = 'a'\nhome = 'b'", "delivery-plane.toml"),
    "nested without end": ("home = " + "[" * 100_000, "delivery-plane.toml"),
    "a number for the address": ("address = 7233", "address"),
    "an address without port": ("address = 'host'", "address 'host'"),
    "no database URL": ("database = 'mysql://x/y'", "DELIVERY_PLANE_DATABASE"),
}


@pytest.mark.parametrize(("text", "said"), SETTINGS.values(), ids=list(SETTINGS))
def test_settings_that_cannot_be(place: Path, text: str, said: str) -> None:
    (place / "delivery-plane.toml").write_text(text)
    before = snapshot(place)
    for command in (("identity", "new", "bob", "--role", "approver"), ("deliver", "support-intents")):
        assert said in refused(*command)
        assert snapshot(place) == before


# --- addresses

ADDRESSES = [
    "host", "host:", "host:99999", "host:0", "host:-1", "host:7233x", ":7233", "h\u00f6st:7233", "a b:7233", "",
    "http://host:7233", "host:7233/path", "user@host:7233", "[::1:7233", "host:7233:7233", "x" * 300 + ":1", "-h:1",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_is_none(place: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    assert "not HOST:PORT" in refused("worker", "--queue", "compute", f"--address={address}")
    monkeypatch.setenv("DELIVERY_PLANE_ADDRESS", address)
    for command in (("deliver", "support-intents"), ("up",), ("deliveries", "cancel", "x")):
        assert "not HOST:PORT" in refused(*command)
    assert snapshot(place) == {}


@contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """Address of a program that is no Temporal server: it sends `answer` to whoever comes, or nothing ever."""
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer is not None:
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()


@pytest.mark.parametrize(
    "answer", [None, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"\0" * 5000, b""]
)
def test_a_port_taken_by_another_program(
    place: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None
) -> None:
    monkeypatch.setattr("workflows.client.CONNECT_SECONDS", 2.0)
    with listener(answer) as address:
        said = refused("worker", "--queue", "governance", "--address", address, code=3)
    assert f"no Temporal server answers at {address}" in said
    assert "name another address" in said
    assert snapshot(place) == {}


def test_an_address_where_nobody_listens(place: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.client.CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert address in refused("worker", "--queue", "governance", "--address", address, code=3)
    monkeypatch.setenv("DELIVERY_PLANE_ADDRESS", address)
    before = snapshot(place)
    assert address in refused("deliveries", "cancel", "delivery-2", code=3)
    assert snapshot(place) == before
    assert home.exists()


def test_no_home_is_made_for_a_server_that_does_not_answer(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.client.CONNECT_SECONDS", 1.0)
    monkeypatch.setenv("DELIVERY_PLANE_ADDRESS", "127.0.0.1:1")
    assert "127.0.0.1:1" in refused("deliver", "support-intents", code=3)
    assert "DELIVERY_PLANE_ADDRESS" in refused("up")
    assert snapshot(place) == {}


def test_a_name_that_no_one_knows_is_no_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.client.CONNECT_SECONDS", 1.0)
    refused("worker", "--queue", "governance", "--address", "no-such-host.invalid:7233", code=3)
    assert snapshot(place) == {}


PEM = b"-----BEGIN CERTIFICATE-----\nbm8gY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--tls-server-ca", "ca.pem"), 2, "ca.pem: cannot be read"),
        (("--tls-client-cert", "text", "--tls-client-key", "text"), 2, "text: no PEM text in it"),
        (("--tls-client-cert", "pem"), 2, "go together"),
        (("--tls-client-key", "pem"), 2, "go together"),
        (("--tls-client-cert", "pem", "--tls-client-key", "/nope"), 2, "/nope: cannot be read"),
        (("--tls-server-ca", "empty"), 2, "empty: no PEM text in it"),
        (("--tls-server-ca", LONG), 2, "cannot be read"),
        (("--tls-client-cert", "pem", "--tls-client-key", "pem"), 3, "no Temporal server answers"),
    ],
)
def test_tls_files_that_are_none(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.setattr("workflows.client.CONNECT_SECONDS", 1.0)
    (place / "text").write_text("my certificate")
    (place / "empty").write_bytes(b"")
    (place / "pem").write_bytes(PEM)
    before = snapshot(place)
    worker = ("worker", "--queue", "compute", "--address", "127.0.0.1:1")
    assert said in refused(*worker, *words, code=code)
    assert snapshot(place) == before


# --- a home that is damaged, foreign or locked


def _cut(length: int) -> Callable[[Path], None]:
    return lambda database: os.truncate(database, length)


def _half(database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2)


def _scrawl(at: int, length: int) -> Callable[[Path], None]:
    def damage(database: Path) -> None:
        with database.open("r+b") as file:
            file.seek(at)
            file.write(random.Random(at).randbytes(length))

    return damage


def _table(statement: str) -> Callable[[Path], None]:
    """A sound database, and none of ours."""

    def replace(database: Path) -> None:
        database.unlink()
        connection = sqlite3.connect(database)
        connection.execute(statement)
        connection.close()

    return replace


def _folder(database: Path) -> None:
    database.unlink()
    database.mkdir()


def _pipe(database: Path) -> None:
    database.unlink()
    os.mkfifo(database)


def _loop(database: Path) -> None:
    database.unlink()
    database.symlink_to(database.name)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": _cut(0),
    "one byte": _cut(1),
    "half a header": _cut(50),
    "a header alone": _cut(100),
    "one page": _cut(4096),
    "half": _half,
    "random header": _scrawl(0, 100),
    "random first pages": _scrawl(100, 12_000),
    "all random": _write(random.Random(1).randbytes(50_000)),
    "text": _write(b"These are minutes of a meeting. " * 500),
    "another program's": _table("CREATE TABLE bookmarks (url TEXT)"),
    "another program's entries": _table("CREATE TABLE entry (n INTEGER)"),
    "a folder": _folder,
    "a pipe": _pipe,
}


@pytest.mark.parametrize(
    "command", ["deliveries list", "ledger verify", "gates list", "ledger show delivery-1"]
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_is_named_and_left_as_it_is(
    place: Path, home: Path, damage: str, command: str
) -> None:
    database = home / "ledger.sqlite"
    DAMAGES[damage](database)
    before = snapshot(place)
    assert "ledger.sqlite" in refused(*command.split(), code=3)
    assert snapshot(place) == before


def test_a_loop_of_links_holds_no_ledger(place: Path, home: Path) -> None:
    _loop(home / "ledger.sqlite")
    before = snapshot(place)
    assert "no ledger here" in refused("deliveries", "list")
    assert snapshot(place) == before


def test_a_ledger_of_another_platform_is_refused(place: Path, home: Path, tmp_path: Path) -> None:
    other = make_used_home(tmp_path / "other")
    shutil.copy(other / "identities" / "platform.json", home / "identities" / "platform.json")
    before = snapshot(place)
    for command in ("deliveries list", "ledger verify", "identity list", "ledger checkpoint delivery-2"):
        assert "belongs to the platform with key" in refused(*command.split(), code=3)
    assert snapshot(place) == before


def test_heads_of_another_platform_do_not_verify(home: Path, tmp_path: Path) -> None:
    other = make_used_home(tmp_path / "other")
    head = home / "heads" / f"{DELIVERY}.checkpoint"
    shutil.copy(other / "heads" / head.name, head)
    ran = run("ledger", "verify")
    assert ran.code == 1
    assert f"{DELIVERY}: NOT VERIFIED: first bad entry 1" in ran.out
    assert "is not signed by this key" in ran.out


@pytest.mark.parametrize("what", ["a pipe", "a folder", "an endless device", "binary", "a list"])
def test_a_head_that_is_none(home: Path, what: str) -> None:
    head = home / "heads" / f"{DELIVERY}.checkpoint"
    head.unlink()
    FILES[what](head)
    ran = run("ledger", "verify")
    assert ran.code in (1, 2, 3)
    assert len(ran.err.splitlines()) == (ran.code != 1)


@pytest.mark.parametrize(
    "text", ['{"a":' * 5000, '{"a": NaN}', '{"a": 1, "a": 2}', "\\ud800", '{"a": "\\ud800"}', ""]
)
def test_a_hostile_payload_in_the_ledger_is_named(home: Path, text: str) -> None:
    parts = open_platform(Home(home))
    connection = raw(parts)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(
        "UPDATE entry SET payload = ? WHERE delivery_id = 'delivery-1' AND number = 3", (text,)
    )
    connection.close()
    parts.ledger.close()
    ran = run("ledger", "verify")
    assert (ran.code, ran.err) == (1, "")
    assert "delivery-1: NOT VERIFIED: first bad entry 3" in ran.out
    said = run("ledger", "show", DELIVERY)
    assert said.code in (3, 4)
    assert "entry 3 of delivery-1 is damaged" in said.err
    assert len(said.err.splitlines()) == 1


def test_a_disk_that_is_full_or_read_only(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "small"
    folder.mkdir()
    tried = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", str(folder)]
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        monkeypatch.setenv("DELIVERY_PLANE_HOME", str(folder / "home"))
        said = refused("identity", "new", "bob", "--role", "approver", code=3)
        assert "small/home" in said
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        before = snapshot(place)
        refused("identity", "new", "bob", "--role", "approver", code=3)
        monkeypatch.setenv("DELIVERY_PLANE_HOME", str(folder / "other"))
        said = refused("identity", "new", "bob", "--role", "approver", code=3)
        assert "set DELIVERY_PLANE_HOME to a writable folder" in said
        assert snapshot(place) == before
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# --- ids and places to write to

IDS = [
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "-",
    "x" * 300,
    "A-B-C",
    "a\nb",
    "a b c",
    "caf\u00e9",
    "a\x1b[2J",
    "\u202e abc",
]


@pytest.mark.parametrize("name", IDS)
def test_an_id_that_could_be_a_path_is_none(place: Path, name: str) -> None:
    assert "delivery_id" in refused("deliver", "support-intents", f"--id={name}")
    refused("identity", "new", "--role", "seat", "--", name)
    assert snapshot(place) == {}


@pytest.mark.parametrize("name", IDS)
def test_an_id_that_could_be_a_path_is_looked_for_nowhere(place: Path, home: Path, name: str) -> None:
    before = snapshot(place)
    for group in ("deliveries show", "ledger show", "ledger checkpoint", "gates show"):
        said = refused(*group.split(), "--", name)
        assert "no delivery" in said or "no gate" in said
    refused("ledger", "export", "--out", "x.jsonl", "--", name)
    refused("gates", "approve", "spend-2", f"--as={name}", "--reason", "x")
    assert snapshot(place) == before
    assert home.exists()


OUTS = [
    "",
    ".",
    "..",
    "/",
    ".delivery-plane",
    "file/x.jsonl",
    "/proc/no-such/x.jsonl",
    LONG,
    "x.pub",
    "x.checkpoint",
    "loop/x.jsonl",
]


@pytest.mark.parametrize("out", OUTS)
def test_an_export_to_no_place(place: Path, home: Path, out: str) -> None:
    (place / "file").write_text("mine")
    (place / "loop").symlink_to("loop")
    before = snapshot(place)
    refused("ledger", "export", DELIVERY, f"--out={out}")
    assert snapshot(place) == before
    assert home.exists()


@pytest.mark.parametrize("folder", ["", ".", "file", "file/x", "/proc/no-such/x", LONG, "/"])
def test_a_fetch_to_no_place(place: Path, home: Path, folder: str) -> None:
    (place / "file").write_text("mine")
    (home / "deliveries" / DELIVERY / "artifact").mkdir(parents=True)
    before = snapshot(place)
    refused("deliveries", "fetch", DELIVERY, folder)
    assert snapshot(place) == before


@pytest.mark.parametrize("seed", ["-1", str(2**31), str(10**30), "1.5", "nan", "", "0x10", "1e3", "one"])
def test_a_seed_out_of_range(place: Path, seed: str) -> None:
    assert "seed" in refused("deliver", "support-intents", f"--seed={seed}")
    assert snapshot(place) == {}


# --- through the program itself


def program(*words: str, **given: object) -> Ran:
    """The installed program in a process of its own."""
    options: dict[str, object] = {"capture_output": True, **given}
    done = subprocess.run(
        [sys.executable, "-m", "delivery_plane.cli", *words],
        text=True,
        timeout=120,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    return Ran(done.returncode, done.stdout or "", done.stderr or "")


PROGRAM: dict[str, tuple[tuple[str, ...], int, str]] = {
    "unknown command": (("nope",), 2, "nope"),
    "unknown option": (("deliver", "support-intents", "--bogus"), 2, "--bogus"),
    "unknown scenario": (("deliver", "nope"), 2, "no scenario 'nope'"),
    "unknown seat": (("deliver", "support-intents", "--seat", "nope"), 2, "no seat 'nope'"),
    "no file": (("rejudge", "nope.jsonl"), 2, "nope.jsonl: cannot be read"),
    "a pipe": (("rejudge", "pipe"), 2, "pipe: cannot be read (no regular file)"),
    "an endless device": (("rejudge", "/dev/zero"), 2, "/dev/zero: cannot be read"),
    "no address": (("worker", "--queue", "compute", "--address", "host:99999"), 2, "not HOST:PORT"),
    "no ledger": (("deliveries", "list"), 2, "no ledger here"),
    "a name that is no text": (("deliveries", "show", "caf\udce9"), 2, "argument 3 is not text"),
}


@pytest.mark.parametrize(("words", "code", "said"), PROGRAM.values(), ids=list(PROGRAM))
def test_the_program_ends_with_one_line(place: Path, words: tuple[str, ...], code: int, said: str) -> None:
    os.mkfifo(place / "pipe")
    before = snapshot(place)
    assert said in one_line_of(program(*words), code)
    assert snapshot(place) == before


def test_an_output_that_is_full_is_one_line(place: Path) -> None:
    with open("/dev/full", "w") as full:
        ran = program(
            "scenarios", "list", "--json", capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert "No space left on device" in one_line_of(ran, 3)
    assert snapshot(place) == {}


def test_a_terminal_without_unicode_is_no_reason_to_fail() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = program("scenarios", "show", "support-intents", env=environment)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(program("scenarios", "show", "support-intents", "--json", env=environment).out)["name"]


def test_two_commands_that_race_for_one_home(place: Path) -> None:
    command = [sys.executable, "-m", "delivery_plane.cli", "identity", "new", "alice", "--role", "approver"]
    racing = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in racing]
    assert sorted(code for _, _, code in ended) == [0, 2, 2, 2], ended
    for out, err, code in ended:
        if code:
            assert "identity alice exists" in one_line_of(Ran(code, out, err), 2)
    assert run("ledger", "verify").code == 0
    assert {path.stem for path in (place / ".delivery-plane" / "identities").iterdir()} == {
        "alice",
        "platform",
    }


# --- anything at all


BYTES = st.binary(max_size=300) | st.text(max_size=100).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
).map(lambda value: (json.dumps(value) + "\n").encode())


@settings(deadline=None, max_examples=40, derandomize=True)
@given(content=BYTES | JSON, reader=st.sampled_from(list(READERS)))
def test_no_bytes_give_a_traceback(exported: Path, used_home: Path, content: bytes, reader: str) -> None:
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for suffix in (".jsonl", ".checkpoint", ".pub"):
        shutil.copy(exported.with_suffix(suffix), ".")
    shutil.copytree(used_home, ".delivery-plane")
    name, command = READERS[reader]
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(content)
    ran = run(*command)
    assert ran.code in (0, 1, 2, 3)
    if ran.code > 1:
        one_line_of(ran, ran.code)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(data=st.data())
def test_no_changed_byte_of_an_export_gives_a_traceback(exported: Path, data: st.DataObject) -> None:
    content = bytearray(exported.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    Path("export.jsonl").write_bytes(content)
    for suffix in (".checkpoint", ".pub"):
        shutil.copy(exported.with_suffix(suffix), ".")
    for command in (("rejudge", "export.jsonl"), ("ledger", "verify", "export.jsonl")):
        ran = run(*command)
        assert ran.code in (0, 1, 2)
        if ran.code == 2:
            one_line_of(ran, 2)
    if ran.code == 0:  # a byte that makes no difference to what the lines say
        assert _same_json(bytes(content), exported.read_bytes())


def _same_json(one: bytes, other: bytes) -> bool:
    return [json.loads(line) for line in one.splitlines()] == [
        json.loads(line) for line in other.splitlines()
    ]
