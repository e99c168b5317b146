"""The ledger's database: one SQLite file, or PostgreSQL by URL. It holds tables and knows no facts.

Both keep the same promises: an append is durable when it returns, the writers of a delivery come one after
another, and no entry is changed or removed. `migrations/` holds how tables came to be what they are.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    UniqueConstraint,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlmodel import Field, Session, SQLModel, create_engine, select

from delivery_plane.errors import BadInput, DeliveryPlaneError, LedgerFault, LedgerUnfit, MachineUnfit

REVISION = "0002"
"""What this release reads and writes; the newest file of `migrations/versions`."""

WAIT_SECONDS = 30
"""How long a writer waits for the one before it."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class EntryRow(SQLModel, table=True):
    """An entry as stored; a table class validates nothing, so it is parsed on the way out."""

    __tablename__ = "entry"
    __table_args__ = (
        UniqueConstraint("delivery_id", "number"),
        UniqueConstraint("delivery_id", "idempotency_key"),
    )

    id: int | None = Field(default=None, primary_key=True)
    delivery_id: str
    number: int
    type: str
    kind: str
    stage: str | None
    attempt: int
    visibility: str
    actor: str
    recorded_at: str
    idempotency_key: str
    payload: str
    prev_hash: str
    hash: str


class FenceRow(SQLModel, table=True):
    """The highest fencing token given out for a resource of a delivery."""

    __tablename__ = "fence"

    delivery_id: str = Field(primary_key=True)
    resource: str = Field(primary_key=True)
    token: int


class OwnerRow(SQLModel, table=True):
    """The one platform whose key signs this ledger's heads: two homes on one database would sign over each other."""

    __tablename__ = "owner"

    public_key: str = Field(primary_key=True)
    since: str


class Database:
    """An open database whose tables are as this release wants them.

    `place` is the file of a SQLite database (made when missing) or a `postgresql://` URL. Raises BadInput for
    what is neither, LedgerUnfit for a database that cannot be reached, is damaged, or is no ledger of ours.
    """

    def __init__(self, place: Path | str) -> None:
        self.name, url = named(place)
        self._postgresql = url.get_backend_name() == "postgresql"
        self.engine = _postgresql(url, self.name) if self._postgresql else _sqlite(url)
        self._for_writing = self.engine.execution_options(writing=True)
        try:
            with self.reached(f"open {self.name}"):
                self._prepare()
        except BaseException:
            self.engine.dispose()
            raise

    @contextmanager
    def reached(self, doing: str) -> Iterator[None]:
        """Turn what a driver raises inside into a LedgerFault that says what was being done."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise self._fault(error, doing) from error

    @contextmanager
    def reading(self, doing: str) -> Iterator[Session]:
        """A session that reads."""
        with self.reached(doing), Session(self.engine) as session:
            yield session

    @contextmanager
    def writing(self, delivery_id: str, doing: str) -> Iterator[Session]:
        """One transaction on a delivery, in turn with every other on it: all of it is written, or none."""
        with self.reached(doing), Session(self._for_writing) as session, session.begin():
            self._take_turn(session.connection(), delivery_id)
            yield session

    def _take_turn(self, connection: Connection, of: str) -> None:
        # SQLite took its one write lock when the transaction began.
        if self._postgresql:
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:of, 0))"), {"of": of})

    def claim_owner(self, public_key: str, now: str) -> None:
        """Make the platform with this key the owner of a ledger that has none. Raises LedgerUnfit for another's."""
        with self.reading(f"open {self.name}") as session:
            owner = session.exec(select(OwnerRow.public_key)).first()
        if owner is None:
            with self.writing("owner", f"open {self.name}") as session:
                owner = session.exec(select(OwnerRow.public_key)).first()
                if owner is None:
                    session.add(OwnerRow(public_key=public_key, since=now))
                    owner = public_key
        if owner != public_key:
            raise LedgerUnfit(
                f"{self.name} belongs to the platform with key {owner[:12]}, not to this home's {public_key[:12]};"
                " restore identities/platform.json, or name another home or database"
            )

    def _prepare(self) -> None:
        """Bring the tables to this release's revision, and the triggers back should somebody have removed them."""
        with self.engine.connect() as connection:
            found = _revision(connection, self.name)
            ready = found == REVISION and self._guarded(connection)
        if not self._postgresql:
            self._write_ahead()
        if ready:
            return
        with self._for_writing.begin() as connection:
            self._take_turn(connection, "upgrade")
            found = _revision(connection, self.name)  # again: another process may have been first
            if found != REVISION:
                _upgrade(connection, found)
            for statement in _GUARDS[connection.dialect.name]:
                connection.exec_driver_sql(statement)

    def _write_ahead(self) -> None:
        """Readers never wait for a writer, nor does it for them. Kept in the file, so not set on another program's."""
        connection = self.engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()

    def _guarded(self, connection: Connection) -> bool:
        statement, wanted = _GUARDS_FOUND[connection.dialect.name]
        return connection.exec_driver_sql(statement).scalar() == wanted

    def _fault(self, error: Exception, doing: str) -> DeliveryPlaneError:
        raised = getattr(error, "orig", None) or error
        first = next(iter(str(raised).splitlines()), type(raised).__name__)
        code = getattr(raised, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _DAMAGED:
            return LedgerUnfit(
                f"{doing}: damaged, or no database at all ({first}); restore a back-up with `ledger restore`"
            )
        if code is not None and code & 0xFF in (
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_PERM,
        ):
            return LedgerUnfit(
                f"{doing}: {first}; see to its place: that it exists, has space, can be written"
            )
        if self._postgresql and isinstance(error, DBAPIError) and _away(error):
            return LedgerUnfit(
                f"{doing}: PostgreSQL does not answer ({first}); start it, or mend DELIVERY_PLANE_DATABASE"
            )
        return LedgerFault(f"{doing}: {type(raised).__name__}: {first}")


def _away(error: DBAPIError) -> bool:
    """Whether an error says that the server is not there, rather than that it refused a statement."""
    return error.connection_invalidated or type(error.orig).__name__ == "OperationalError"


def named(place: Path | str) -> tuple[str, URL]:
    """What to call a database in messages (no password), and its URL. Raises BadInput for what can be none."""
    if isinstance(place, Path):
        return str(place), URL.create("sqlite", database=str(place))
    try:
        url = make_url(place)
        url.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise BadInput(_NO_URL) from None
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg") or not url.database:
        raise BadInput(_NO_URL)
    return url.set(drivername="postgresql").render_as_string(hide_password=True), url.set(
        drivername="postgresql+psycopg"
    )


_NO_URL = "DELIVERY_PLANE_DATABASE: no database URL; write postgresql://USER:PASSWORD@HOST:PORT/NAME"


def _sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": WAIT_SECONDS})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        # The driver must not open transactions by itself: `begin` below chooses their kind.
        connection.isolation_level = None
        for pragma in ("synchronous=FULL", f"busy_timeout={WAIT_SECONDS * 1000}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writing = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _postgresql(url: URL, name: str) -> Engine:
    try:
        # A server that was restarted is found again at the next use, not at the second next.
        engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 10})
    except ModuleNotFoundError:
        raise MachineUnfit(f"{name}: no driver; install it with `pip install 'psycopg[binary]'`") from None

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = on")
            cursor.execute(f"SET lock_timeout = '{WAIT_SECONDS}s'")
            # A writer that was frozen in the middle must not keep the others out for ever.
            cursor.execute(f"SET idle_in_transaction_session_timeout = '{2 * WAIT_SECONDS}s'")
        connection.commit()

    return engine


def _revision(connection: Connection, name: str) -> str | None:
    """Which revision the tables are of; None for an empty database. Raises LedgerUnfit for what is no ledger."""
    tables = set(inspect(connection).get_table_names())
    if "alembic_version" in tables:
        found = connection.scalar(text("SELECT version_num FROM alembic_version"))
        if found is not None and found > REVISION:
            raise LedgerUnfit(
                f"{name} was written by a newer release (revision {found}, known here: {REVISION});"
                " upgrade delivery-plane"
            )
        return str(found) if found else None
    if not tables:
        return None
    columns = (
        {column["name"] for column in inspect(connection).get_columns("entry")}
        if "entry" in tables
        else set()
    )
    # Release 0.1.0 kept no revision; its tables are the first one's.
    if "fence" in tables and set(EntryRow.model_fields) <= columns:
        return "0001"
    raise LedgerUnfit(f"{name} holds tables of another program; name another home or database")


def _upgrade(connection: Connection, found: str | None) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    if found == "0001" and not inspect(connection).has_table("alembic_version"):
        command.stamp(config, found)
    command.upgrade(config, REVISION)


_GUARDS = {
    "sqlite": (
        """CREATE TRIGGER IF NOT EXISTS entry_no_update BEFORE UPDATE ON entry
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
        """CREATE TRIGGER IF NOT EXISTS entry_no_delete BEFORE DELETE ON entry
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
        # INSERT OR REPLACE removes the row in its way without asking the trigger above.
        """CREATE TRIGGER IF NOT EXISTS entry_no_replace BEFORE INSERT ON entry
        WHEN EXISTS (SELECT 1 FROM entry WHERE id = NEW.id)
          OR EXISTS (SELECT 1 FROM entry WHERE delivery_id = NEW.delivery_id AND number = NEW.number)
          OR EXISTS (
            SELECT 1 FROM entry WHERE delivery_id = NEW.delivery_id AND idempotency_key = NEW.idempotency_key)
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    ),
    "postgresql": (
        """CREATE OR REPLACE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$""",
        """CREATE OR REPLACE TRIGGER entry_no_change BEFORE UPDATE OR DELETE ON entry
        FOR EACH ROW EXECUTE FUNCTION ledger_is_append_only()""",
        """CREATE OR REPLACE TRIGGER entry_no_truncate BEFORE TRUNCATE ON entry
        FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only()""",
        "ALTER TABLE entry ENABLE TRIGGER entry_no_change, ENABLE TRIGGER entry_no_truncate",
    ),
}
"""What makes the table append-only, for everybody who does not take the triggers away first."""

_GUARDS_FOUND = {
    "sqlite": ("SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'entry'", 3),
    "postgresql": (
        "SELECT count(*) FROM pg_trigger"
        " WHERE tgrelid = 'entry'::regclass AND NOT tgisinternal AND tgenabled = 'O'",
        2,
    ),
}
"""How to count the triggers that are there and at work, and how many there should be."""
