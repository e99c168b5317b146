"""What holds on one kind of database only, and how a database of an earlier release becomes this one's."""

import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ledgers
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import DELIVERY, REFUSED, at_once, new_platform, note, platform_key, raw, reopened, whole
from postgres import Postgres, binaries, postgres
from sqlmodel import SQLModel

import delivery_plane
from delivery_plane.database import REVISION
from delivery_plane.entry import parse_entries, read_json_lines
from delivery_plane.errors import BadInput, LedgerFault, LedgerUnfit
from delivery_plane.ledger import Ledger
from oracle.judge import rejudge
from workflows.platform import Platform

FORK = multiprocessing.get_context("fork")
RELEASES = Path(__file__).parent / "releases"


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Platform]:
    made = new_platform(tmp_path)
    yield made
    made.ledger.close()


@pytest.fixture
def on_postgres(postgres_server: Postgres, tmp_path: Path) -> Iterator[Platform]:
    ledgers.NEW_DATABASE.append(postgres_server.database)
    made = new_platform(tmp_path)
    ledgers.NEW_DATABASE.clear()
    yield made
    made.ledger.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets one test run twice: on SQLite, and on PostgreSQL."""
    if request.param == "postgresql":
        ledgers.NEW_DATABASE.append(request.getfixturevalue("postgres_server").database)
    yield
    ledgers.NEW_DATABASE.clear()


# --- SQLite


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE OR REPLACE entry SET number = 1 WHERE number = 2",
        "INSERT OR REPLACE INTO entry SELECT id, delivery_id, number, type, kind, stage, attempt, visibility,"
        " 'mallory', recorded_at, idempotency_key, payload, prev_hash, hash FROM entry WHERE number = 2",
    ],
)
def test_sqlite_refuses_to_replace_an_entry(parts: Platform, statement: str) -> None:
    for number in range(3):
        parts.ledger.fact(DELIVERY, note(number))
    before = parts.ledger.entries(DELIVERY)
    with pytest.raises(REFUSED, match="append-only"):
        raw(parts).execute(statement)
    assert parts.ledger.entries(DELIVERY) == before


def test_every_connection_writes_ahead_and_syncs_fully(parts: Platform) -> None:
    def pragmas(_: int) -> tuple[Any, ...]:
        with parts.ledger._database.engine.connect() as connection:
            return tuple(
                connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "busy_timeout")
            )

    full = 2  # https://sqlite.org/pragma.html#pragma_synchronous
    assert set(at_once(6, pragmas)) == {("wal", full, 30_000)}


def test_a_writer_waits_for_one_that_is_at_it(parts: Platform) -> None:
    other = raw(parts)
    other.execute("BEGIN IMMEDIATE")
    writer = threading.Thread(target=parts.ledger.fact, args=(DELIVERY, note(1)))
    writer.start()
    time.sleep(0.2)
    assert writer.is_alive()
    assert parts.ledger.entries(DELIVERY) == []
    other.execute("COMMIT")
    writer.join(timeout=10)
    assert len(parts.ledger.entries(DELIVERY)) == 1


def fill_up(parts: Platform, answer: Connection) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = reopened(parts)
    ledger.fact(DELIVERY, note(0))
    size = max(path.stat().st_size for path in parts.home.root.glob("ledger.sqlite*"))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, unlimited[1]))
    written, error = 0, ""
    try:
        for number in range(1, 500):
            ledger.fact(DELIVERY, note(number))
            written = number
    except LedgerFault as fault:
        error = str(fault)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    ledger.fact(DELIVERY, note("after"))
    answer.send((written, error))


def test_a_full_disk_fails_closed_and_the_record_goes_on_after_it(parts: Platform) -> None:
    reading, writing = FORK.Pipe(duplex=False)
    process = FORK.Process(target=fill_up, args=(parts, writing))
    process.start()
    writing.close()
    written, error = reading.recv()
    process.join()
    assert process.exitcode == 0
    assert "append to delivery-1" in error
    keys = whole(reopened(parts), platform_key(parts))
    kept = [f"evaluation_requested:-:0:note-{number}" for number in (*range(written + 1), "after")]
    assert keys == kept


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """A record whose entries lie in the write-ahead log, not yet in the database file."""
    parts = new_platform(tmp_path_factory.mktemp("crashed"))
    for number in range(10):
        parts.ledger.fact(DELIVERY, note(number))
    parts.ledger.checkpoint(DELIVERY)
    return parts


@settings(deadline=None, max_examples=25)
@given(cut=st.floats(0, 1), flipped=st.booleans())
def test_a_torn_log_leaves_a_prefix_and_what_is_missing_is_named(
    crashed: Platform, tmp_path_factory: pytest.TempPathFactory, cut: float, flipped: bool
) -> None:
    parts = new_platform(tmp_path_factory.mktemp("torn"))
    parts.ledger.close()
    for path in parts.home.root.glob("ledger.sqlite*"):
        path.unlink()
    shutil.copyfile(crashed.home.ledger, parts.home.ledger)
    shutil.copyfile(
        crashed.ledger.head_file(DELIVERY), parts.home.heads / crashed.ledger.head_file(DELIVERY).name
    )
    log = bytearray(crashed.home.ledger.with_name("ledger.sqlite-wal").read_bytes())
    place = min(int(cut * len(log)), len(log) - 1)
    if flipped:
        log[place] ^= 0xFF
    else:
        del log[place:]
    parts.home.ledger.with_name("ledger.sqlite-wal").write_bytes(log)
    ledger = Ledger(parts.home.ledger, parts.home.heads)
    left = ledger.entries(DELIVERY)
    result = ledger.verify(DELIVERY, platform_key(crashed))
    ledger.close()
    assert left == crashed.ledger.entries(DELIVERY)[: len(left)]
    assert result.verified == (len(left) == 10)
    assert result.first_bad == (None if len(left) == 10 else len(left) + 1)


# --- places that are no ledger


def _text(folder: Path) -> Path:
    path = folder / "ledger.sqlite"
    path.write_text("These are the minutes of a meeting, and no database at all. " * 20)
    return path


def _folder(folder: Path) -> Path:
    path = folder / "ledger.sqlite"
    path.mkdir()
    return path


def _nowhere(folder: Path) -> Path:
    return folder / "no such folder" / "ledger.sqlite"


@pytest.mark.parametrize("make", [_text, _folder, _nowhere])
def test_what_is_no_database_is_a_ledger_fault(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    with pytest.raises(LedgerFault, match=r"ledger\.sqlite"):
        Ledger(path, tmp_path)


@pytest.mark.parametrize("make", [_text, _folder, _nowhere])
def test_a_ledger_fault_is_one_line(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with pytest.raises(LedgerFault) as caught:
        Ledger(make(tmp_path), tmp_path)
    assert len(str(caught.value).splitlines()) == 1


# --- PostgreSQL


def test_postgresql_refuses_to_empty_the_table(on_postgres: Platform) -> None:
    on_postgres.ledger.fact(DELIVERY, note(1))
    with pytest.raises(REFUSED, match="append-only"):
        raw(on_postgres).execute("TRUNCATE entry")
    assert len(on_postgres.ledger.entries(DELIVERY)) == 1


def test_writers_of_one_delivery_wait_for_each_other_and_others_do_not(on_postgres: Platform) -> None:
    ledger = on_postgres.ledger
    second = threading.Thread(target=ledger.fact, args=(DELIVERY, note(2)))
    with ledger.writing(DELIVERY) as writer:
        writer.fact(note(1))
        second.start()
        time.sleep(0.2)
        assert second.is_alive()
        assert ledger.fact("delivery-2", note(1)).number == 1
    second.join(timeout=20)
    assert [entry.payload["request_id"] for entry in ledger.entries(DELIVERY)] == ["note-1", "note-2"]


def test_every_session_commits_to_disk_whatever_the_server_defaults_to(on_postgres: Platform) -> None:
    admin = raw(on_postgres)
    (name,) = admin.execute("SELECT current_database()").fetchone()
    admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    ledger = reopened(on_postgres)
    with ledger._database.engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    ledger.close()


def append_through_crashes(place: str, heads: Path, worker: int, said: int) -> None:
    ledger = Ledger(place, heads)
    for number in range(100_000):
        while True:
            try:
                ledger.fact(DELIVERY, note(f"{worker}-{number}"))
                break
            except LedgerFault:
                time.sleep(0.05)
        os.write(said, f"{worker}-{number}\n".encode())


@pytest.mark.skipif(binaries() is None, reason="PostgreSQL is not installed")
def test_a_killed_server_loses_nothing_it_acknowledged_and_is_found_again(tmp_path: Path) -> None:
    with postgres(durable=True) as server:
        ledgers.NEW_DATABASE.append(server.database)
        parts = new_platform(tmp_path)
        ledgers.NEW_DATABASE.clear()
        reading, writing = os.pipe()
        workers = [
            FORK.Process(
                target=append_through_crashes, args=(parts.home.ledger, parts.home.heads, worker, writing)
            )
            for worker in range(2)
        ]
        for worker in workers:
            worker.start()
        os.close(writing)
        acknowledged: list[str] = []
        with os.fdopen(reading) as lines:
            for _ in range(3):
                acknowledged += [lines.readline().strip() for _ in range(10)]
                server.kill()
                server.start()
            acknowledged += [lines.readline().strip() for _ in range(10)]
            for worker in workers:
                worker.kill()
                worker.join()
            acknowledged += [line.strip() for line in lines]
        keys = whole(parts.ledger, platform_key(parts))  # through the connections from before the kills
        assert {f"evaluation_requested:-:0:note-{said}" for said in acknowledged} <= set(keys)
        assert len(keys) == len(set(keys))
        parts.ledger.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql",
        "postgresql://",
        "postgresql://host",
        "mysql://root@localhost/ledger",
        "sqlite:///ledger.sqlite",
        "http://example.org/ledger",
        "postgresql+asyncpg://localhost/ledger",
        "postgresql://localhost:port/ledger",
        "",
        "\N{LATIN SMALL LETTER U WITH DIAERESIS}://x/y",
    ],
)
def test_what_is_no_database_url_is_bad_input_in_one_line(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadInput, match="write postgresql://") as caught:
        Ledger(url, tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_server_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnfit, match="DELIVERY_PLANE_DATABASE") as caught:
        Ledger("postgresql://ann:secret@127.0.0.1:9/ledger", tmp_path)
    assert "secret" not in str(caught.value)
    assert "ann:***@127.0.0.1:9/ledger" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# --- tables


@pytest.mark.usefixtures("either")
def test_the_migrations_make_exactly_the_tables_that_the_code_expects(tmp_path: Path) -> None:
    parts = new_platform(tmp_path)
    with parts.ledger._database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), SQLModel.metadata) == []
    parts.ledger.close()


def test_the_code_names_the_newest_migration() -> None:
    folder = Path(delivery_plane.__file__).parent / "migrations"
    assert ScriptDirectory(str(folder)).get_current_head() == REVISION


@pytest.mark.usefixtures("either")
def test_processes_that_open_a_new_database_at_once_all_find_it_ready(tmp_path: Path) -> None:
    home = new_platform(tmp_path).home
    place = ledgers.NEW_DATABASE[-1]() if ledgers.NEW_DATABASE else tmp_path / "new.sqlite"

    def open_and_append(number: int) -> int:
        ledger = Ledger(place, home.heads)
        try:
            return ledger.fact(DELIVERY, note(number)).number
        finally:
            ledger.close()

    assert sorted(at_once(4, open_and_append)) == [1, 2, 3, 4]


@pytest.fixture(params=sorted(path.name for path in RELEASES.iterdir()))
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what an earlier release wrote: its database, its signed heads, its exports."""
    return Path(shutil.copytree(RELEASES / request.param, tmp_path / "release"))


def test_a_database_of_an_earlier_release_is_upgraded_and_its_exports_stay_what_they_were(
    release: Path,
) -> None:
    ledger = Ledger(release / "ledger.sqlite", release / "heads")
    exports = sorted((release / "exports").glob("*.jsonl"))
    assert sorted(ledger.deliveries()) == [path.stem for path in exports]
    for path in exports:
        again = release / "again" / path.name
        written = ledger.export(path.stem, again)
        for file in written:
            assert file.read_bytes() == (path.parent / file.name).read_bytes(), file.name
        assert ledger.verify(path.stem, path.with_suffix(".pub").read_text().strip()).verified
        assert rejudge(parse_entries(read_json_lines(again), str(again))) == []
    ledger.close()


def test_an_upgraded_database_is_like_a_new_one_and_goes_on(release: Path, parts: Platform) -> None:
    def schema(path: Path) -> set[tuple[str, str]]:
        found = sqlite3.connect(path).execute(
            "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        )
        return set(found.fetchall())

    ledger = Ledger(release / "ledger.sqlite", release / "heads")
    assert isinstance(parts.home.ledger, Path)
    assert schema(release / "ledger.sqlite") == schema(parts.home.ledger)
    delivery = ledger.deliveries()[0]
    number = len(ledger.entries(delivery))
    assert ledger.fact(delivery, note(1)).number == number + 1
    with ledger.writing(delivery) as writer:
        assert writer.next_fence("train:1").token > 1
    ledger.close()


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(release: Path) -> None:
    path = release / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE owner (something_else TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerFault, match="owner"):
        Ledger(path, release / "heads")
    assert sqlite3.connect(path).execute(
        "SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'"
    ).fetchone() == (0,)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE owner")
    connection.close()
    assert len(before) == path.stat().st_size
    Ledger(path, release / "heads").close()


@pytest.mark.usefixtures("either")
def test_a_database_of_a_newer_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    parts = new_platform(tmp_path)
    parts.ledger.fact(DELIVERY, note(1))
    raw(parts).execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LedgerUnfit, match="newer release"):
        reopened(parts)
    assert raw(parts).execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)
    parts.ledger.close()


@pytest.mark.parametrize("table", ["entry", "notes"])
def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path, table: str) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerUnfit, match="another program"):
        Ledger(path, tmp_path)
    assert path.read_bytes() == before
    assert sqlite3.connect(path).execute("SELECT name FROM sqlite_master").fetchall() == [(table,)]


@pytest.mark.usefixtures("either")
def test_a_ledger_belongs_to_the_platform_that_opened_it_first(tmp_path: Path) -> None:
    parts = new_platform(tmp_path)
    parts.ledger.fact(DELIVERY, note(1))
    stranger = parts.identities.new("stranger", "platform")
    with pytest.raises(LedgerUnfit, match="belongs to the platform with key") as caught:
        Ledger(parts.home.ledger, tmp_path / "heads", stranger.key)
    assert platform_key(parts)[:12] in str(caught.value)
    reopened(parts).close()
    parts.ledger.close()
