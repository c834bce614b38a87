"""The durable state of a control service: SQLAlchemy over SQLite or PostgreSQL, Alembic migrations.

Needs the extra `podracer-platform[database]`.

Only one process may write to a database: the active one. A SQLite file is locked for as long as its
process lives. PostgreSQL cannot tell a dead process from one behind a broken connection. A row
therefore names the active process and the time, by the server's clock, at which its term ends
unless it gives another sign of life. After that another process may take over, with the next
number. Every write transaction locks the row with its own number until it commits: a process that
was paused, and resumes after another has taken over, writes nothing.

A standby (`wait_for_database`) is a process beside the active one, alive, ready, and waiting to
take over."""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import importlib.resources
import importlib.util
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self, TypeVar

from sqlalchemy import (
    URL,
    BigInteger,
    Connection,
    Dialect,
    Engine,
    String,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import TypeDecorator

from podracer_core.errors import (
    DataCorrupted,
    FieldViolation,
    InvalidInput,
    PodracerError,
    Unavailable,
    plain,
)
from podracer_platform.rpc import Address, Health
from podracer_platform.telemetry import DATABASE

logger = logging.getLogger(__name__)


Result = TypeVar("Result")

READERS = 4
TURN_S = 0.0005
"""The switch interval of the interpreter. A transaction needs the interpreter at every statement:
with Python's default of 5 ms, beside a busy event loop, it would take a quarter of a second."""
END_S = 10.0
TERM_S = 15.0
"""How long a process stays the active one of a PostgreSQL database without a sign of life."""


class Database:
    """An open database, as `open_database` returns it. `close` it, or use it as an asynchronous
    context manager.

    An operation is a function of a session. It runs in a thread of the database, so that the event
    loop does not wait for a disk or a server; everything else that it uses must be safe in that
    thread. The rows that it returns are loaded, and stay usable afterwards."""

    def __init__(
        self, url: URL, engine: Engine, lock: FileLock | None, tenure: Tenure | None
    ) -> None:
        self._url = url
        self._engine = engine
        self._lock = lock
        self._tenure = tenure
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        self._writing = sessionmaker(engine, expire_on_commit=False)
        event.listen(self._writing, "loaded_as_persistent", _keep)
        self._readers = ThreadPoolExecutor(READERS, "database-reader")
        self._writer = ThreadPoolExecutor(1, "database-writer")
        self._closing = threading.Event()
        if tenure is not None:
            threading.Thread(
                target=self._show_life, args=(tenure,), name="database-life", daemon=True
            ).start()

    async def read(self, operation: Callable[[Session], Result]) -> Result:
        """Run an operation on one snapshot, in parallel with a write operation; its changes are not
        kept."""
        with DATABASE.timed(operation="read"):
            return await self._in_thread(self._readers, self._read, operation)

    async def write(self, operation: Callable[[Session], Result]) -> Result:
        """Run an operation and return once its changes are durable. An exception inside it rolls
        all changes back.

        Write operations run one after the other, so the rows that one reads cannot change before it
        commits. An operation runs to its end, and its changes are written, even if the caller is
        cancelled. Raises Unavailable, with nothing written, when the disk is full or fails, the
        server cannot be reached, or another process has taken over (NOT_ACTIVE)."""
        with DATABASE.timed(operation="write"):
            return await asyncio.shield(self._in_thread(self._writer, self._write, operation))

    async def check(self) -> None:
        """Raise unless the database answers and this process is the active one. Call it before a
        change outside the database."""
        look = (
            self._tenure.check
            if self._tenure is not None
            else lambda session: session.execute(text("SELECT 1"))
        )
        await self.read(look)

    async def close(self) -> None:
        """Wait up to END_S for the running operations, close all connections and release the
        database. If an operation has not ended by then, the database is released when this process
        ends."""
        ending = threading.Thread(target=self._end, name="database-end", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, END_S)
        if not ending.is_alive():
            if self._tenure is not None:
                await asyncio.to_thread(self._tenure.release, self._engine)
            self._engine.dispose()
            if self._lock is not None:
                self._lock.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _read(self, operation: Callable[[Session], Result]) -> Result:
        with translated_errors(self._url), self._sessions() as session:
            return operation(session)

    def _write(self, operation: Callable[[Session], Result]) -> Result:
        with translated_errors(self._url):
            if self._tenure is not None and self._tenure.is_due:
                with self._sessions.begin() as session:
                    self._tenure.extend(session)
            with self._writing.begin() as session:
                if self._tenure is not None:
                    self._tenure.hold(session)
                return operation(session)

    def _show_life(self, tenure: Tenure) -> None:
        """Extend the term while there are no write operations."""
        while not self._closing.wait(tenure.term_s / 10):
            if tenure.is_due:
                with suppress(PodracerError, RuntimeError):  # it is tried again, or closed
                    self._writer.submit(self._write, lambda session: None).result()

    @staticmethod
    def _in_thread(
        executor: ThreadPoolExecutor,
        run: Callable[[Callable[[Session], Result]], Result],
        operation: Callable[[Session], Result],
    ) -> asyncio.Future[Result]:
        try:
            # In the caller's context: what is written there belongs to the same span.
            in_context = contextvars.copy_context().run
            return asyncio.get_running_loop().run_in_executor(executor, in_context, run, operation)
        except RuntimeError as error:
            raise Unavailable("the database is being closed", reason="DATABASE_CLOSED") from error

    def _end(self) -> None:
        self._closing.set()
        for executor in (self._writer, self._readers):
            executor.shutdown()


def _keep(session: Session, row: object) -> None:
    """Hold a reference to every loaded row: a session drops rows without one, and would read them
    again."""
    session.info.setdefault("podracer_rows", []).append(row)


def open_database(
    url: str, migrations_package: str, *, holder: str = "", term_s: float = TERM_S
) -> Database:
    """Become the active process of the database, bring its schema up to date and return it. Sets
    the process's TURN_S.

    `url` is `sqlite:////absolute/path` (the folder is created) or `postgresql://…`;
    `migrations_package` is the dotted name of the service's migrations (see `upgrade`). `holder` is
    the name of this process in PostgreSQL. There it stays active until it has given no sign of life
    for `term_s`, and takes over at once from a process of the same name. Raises InvalidInput for a
    URL of another form, a folder that cannot be written, a file in use or a database that is too
    new; DataCorrupted for a file that is not a database; Unavailable if the server cannot be
    reached, or another process is the active one (NOT_ACTIVE)."""
    sys.setswitchinterval(TURN_S)
    parsed = parse_url(url)
    engine = make_engine(parsed, term_s)
    tenure = lock = None
    if parsed.get_backend_name() == "sqlite":
        prepare_file(Path(parsed.database or ""))
        lock = FileLock(Path(parsed.database or ""))
    else:
        tenure = Tenure(migrations_package, term_s)
    try:
        # One transaction: only the active process changes the schema, and no other takes over
        # during the change.
        with translated_errors(parsed), engine.begin() as connection:
            if tenure is not None:
                tenure.take(connection, holder or secrets.token_hex(8))
            upgrade(connection, migrations_package)
            if tenure is not None:
                tenure.extend(connection)
    except BaseException:
        engine.dispose()
        if lock is not None:
            lock.release()
        raise
    return Database(parsed, engine, lock, tenure)


STANDBY_EVERY_S = 0.5
"""How often a standby tries."""


async def wait_for_database(
    url: str, migrations_package: str, *, holder: str = "", term_s: float = TERM_S, health: str = ""
) -> Database:
    """Wait until no other process is the active one, then `open_database`. While it waits, the
    health port answers at the address `health`. Raises the errors of the first `open_database`,
    except NOT_ACTIVE."""
    standing_by: Health | None = None
    try:
        while True:
            try:
                return await asyncio.to_thread(
                    open_database, url, migrations_package, holder=holder, term_s=term_s
                )
            except Unavailable as error:
                if standing_by is None and error.reason != NOT_ACTIVE:
                    raise
                if standing_by is None:
                    logger.info("standing by: %s", error.message)
                    standing_by = Health((), health)
                    await standing_by.open()
                    standing_by.set_ready(True)
            await asyncio.sleep(STANDBY_EVERY_S)
    finally:
        if standing_by is not None:
            await standing_by.close()


VERSION_TABLE = "alembic_version"


def upgrade(connection: Connection, migrations_package: str) -> None:
    """Run the missing migrations, all in the transaction of `connection`: if the process is killed,
    none has happened.

    `migrations_package` holds one file per revision, `<revision>_<what it does>.py`, with revisions
    in sorting order (`r0001`, `r0002`). For a database at the last revision this is one query, and
    Alembic is not imported. Raises InvalidInput for a database that a newer version of the service
    has written."""
    with importlib.resources.as_file(importlib.resources.files(migrations_package)) as folder:
        current = current_revision(connection)
        if current != newest_revision(folder):
            _run(connection, folder, current)


def newest_revision(folder: Path) -> str:
    """The last revision in a folder of migrations, by file name."""
    return max(path.stem.split("_", 1)[0] for path in folder.glob("[!_]*.py"))


def current_revision(connection: Connection) -> str | None:
    """The revision of a database; None for an empty one."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - a constant


def _run(connection: Connection, folder: Path, current: str | None) -> None:
    # Late: a tenth of a second that only the first start after an update needs.
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from alembic.script.revision import RevisionError

    scripts = ScriptDirectory(str(folder), version_locations=[str(folder)])
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    try:
        revisions = list(scripts.iterate_revisions("head", current or "base"))
    except RevisionError as error:
        raise InvalidInput(
            f"this version does not support the database revision {current}: use the version that "
            "wrote it",
            reason="DATABASE_TOO_NEW",
            revision=current,
        ) from error
    with Operations.context(context):
        for script in reversed(revisions):
            logger.info("migrating the database to %s: %s", script.revision, script.doc)
            script.module.upgrade()
            context.stamp(scripts, script.revision)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class PlainText(TypeDecorator[str]):
    """A text as PostgreSQL takes it, in SQLite too (`plain`)."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None or (value.isascii() and "\0" not in value) else plain(value)


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime as whole microseconds since 1970 in UTC: exact, ordered, and with no zone
    to lose.

    SQLite's own DATETIME drops the zone. Raises ValueError for a naive datetime.
    """

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else self.microseconds(value)

    @staticmethod
    def microseconds(value: datetime) -> int:
        """A time as it is stored: microseconds since 1970. Raises ValueError if it has no time
        zone."""
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + value * _MICROSECOND


EXPECTED = "sqlite:////absolute/path or postgresql://user@host/database"


_NO_TLS = (
    "the server is on another machine, and libpq's default neither requires TLS nor verifies the "
    "server: add ?sslmode=verify-full&sslrootcert=FILE, or the sslmode that you want"
)


BUSY_TIMEOUT_S = 10.0

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # in WAL mode anything less may forget acknowledged commits when the power fails
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}",
)

_IDLE_IN_TRANSACTION = "25P03"


_SERVER_AWAY = {"connect_timeout": 10, "tcp_user_timeout": 30_000, "keepalives_idle": 30}


def parse_url(text: str) -> URL:
    """The URL with the driver that this package uses. Raises InvalidInput for a URL of any other
    form, and for one that leaves it to libpq whether a connection to another machine is safe."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise _invalid(text, f"expected {EXPECTED}") from error
    match url.get_backend_name():
        case "sqlite" if url.database and url.database != ":memory:":
            return URL.create("sqlite", database=str(Path(url.database).absolute()))
        case "sqlite":
            raise _invalid(
                text,
                "a database in memory forgets everything: give a file, sqlite:////absolute/path",
            )
        case "postgresql" | "postgres":
            if importlib.util.find_spec("psycopg") is None:
                raise _invalid(
                    text, "PostgreSQL needs the driver psycopg: pip install 'psycopg[binary]'"
                )
            hosts = [
                url.host or "",
                *url.normalized_query.get("host", ()),
                *url.normalized_query.get("hostaddr", ()),
            ]
            remote = [
                host
                for host in hosts
                if host and not host.startswith("/") and not Address(host=host).is_local
            ]
            if remote and not (
                url.query.keys() & {"sslmode", "service"} or "PGSSLMODE" in os.environ
            ):
                raise _invalid(text, _NO_TLS)
            return url.set(drivername="postgresql+psycopg")
    raise _invalid(text, f"expected {EXPECTED}")


def prepare_file(path: Path) -> None:
    """Create the folder and an empty file (mode 0600: it may hold secrets) if they do not exist.

    Raises InvalidInput with the path if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> InvalidInput:
    """The error for a database file or folder that cannot be written."""
    reason = "not a folder" if isinstance(error, FileExistsError) else error.strerror
    problem = f"the database {path} cannot be written: {error.filename}: {reason}"
    return InvalidInput(problem, field="database", reason="DATABASE_UNWRITABLE", path=path)


def make_engine(url: URL, idle_s: float = 15.0) -> Engine:
    """An engine with durable commits, in which every transaction sees one snapshot.

    PostgreSQL ends a transaction whose process is silent for `idle_s`, which releases the locks of
    a lost node."""
    if url.get_backend_name() != "sqlite":
        # Connections that died with the server are noticed; none waits for ever for a server that
        # is out of reach.
        options = (
            f"{url.query.get('options', '')} -c "
            f"idle_in_transaction_session_timeout={int(idle_s * 1000)}"
        )
        arguments = _SERVER_AWAY | {"options": options.strip()}
        return create_engine(
            url, isolation_level="REPEATABLE READ", pool_pre_ping=True, connect_args=arguments
        )
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    # Without an explicit BEGIN the driver starts a transaction only before the first write: reads
    # would not be of one snapshot, and a killed migration would leave half a schema behind.
    @event.listens_for(engine, "begin")
    def begin(connection: object) -> None:
        connection.exec_driver_sql("BEGIN")  # type: ignore[attr-defined]

    return engine


@contextmanager
def translated_errors(url: URL) -> Iterator[None]:
    """Raise a failure of the disk or the server as Unavailable, and a damaged file as
    DataCorrupted."""
    name = url.render_as_string(hide_password=True)
    try:
        yield
    except DBAPIError as error:
        text = " ".join(str(error.orig).split())  # one line of a log
        was_silent = getattr(error.orig, "sqlstate", "") == _IDLE_IN_TRANSACTION
        if was_silent or isinstance(error, OperationalError | InterfaceError):
            raise Unavailable(
                f"the database {name} cannot be used now: {text}",
                reason="DATABASE_UNAVAILABLE",
                database=name,
            ) from error
        if "not a database" in text or "malformed" in text:
            raise DataCorrupted(
                f"{name}: {text}", reason="DATABASE_CORRUPTED", database=name
            ) from error
        raise


def _invalid(text: str, problem: str) -> InvalidInput:
    # The URL itself may hold a password: the message must not repeat it.
    return InvalidInput(
        f"database URL {text.split(':', 1)[0]}:…: {problem}",
        reason="INVALID_DATABASE_URL",
        violations=[FieldViolation("database", problem)],
    )


TABLE = "podracer_active"


NOT_ACTIVE = "NOT_ACTIVE"
"""Reason of an Unavailable: another process is the active one."""

_MAKE = f"""CREATE TABLE IF NOT EXISTS {TABLE}
    (purpose text PRIMARY KEY, number bigint NOT NULL, holder text NOT NULL,
     expiry timestamptz NOT NULL)"""


_UNTIL = "clock_timestamp() + make_interval(secs => :term_s)"


_TAKE = f"""INSERT INTO {TABLE} AS active VALUES (:purpose, 1, :holder, {_UNTIL})
    ON CONFLICT (purpose)
    DO UPDATE SET number = active.number + 1, holder = :holder, expiry = {_UNTIL}
    WHERE active.expiry < clock_timestamp() OR active.holder = :holder RETURNING number"""  # noqa: S608 - constants


_SAME_MOMENT = ("23505", "40001")
"""SQLSTATE when another process creates the table, or takes over, at the same moment."""


_OURS = "WHERE purpose = :purpose AND number = :number"


_EXTEND = f"UPDATE {TABLE} SET expiry = {_UNTIL} {_OURS} RETURNING number"  # noqa: S608


_END = f"UPDATE {TABLE} SET expiry = '-infinity' {_OURS}"  # noqa: S608


_CHECK = f"SELECT number FROM {TABLE} {_OURS}"  # noqa: S608


_HOLD = f"{_CHECK} FOR SHARE"


@dataclass(slots=True)
class Tenure:
    """One process's turn as the writer of `purpose` in PostgreSQL: `term_s` seconds from the last
    sign of life."""

    purpose: str
    term_s: float
    number: int = 0
    _due: float = field(default=0.0, init=False)

    def take(self, connection: Connection, holder: str) -> None:
        """Begin the tenure when this transaction commits; from then on the previous process cannot
        write.

        Raises Unavailable (NOT_ACTIVE) while the term of the previous process lasts, unless its
        name is `holder`, too."""
        values = {"purpose": self.purpose, "holder": holder, "term_s": self.term_s}
        try:
            connection.execute(text(_MAKE))
            number = connection.execute(text(_TAKE), values).scalar()
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", "") not in _SAME_MOMENT:
                raise
            number = None
        if number is None:
            raise Unavailable("another process is active for this database", reason=NOT_ACTIVE)
        self.number = number

    def extend(self, session: Session | Connection) -> None:
        """Give a sign of life, which begins a new term. Raises as `hold`."""
        sent_at = time.monotonic()
        self._execute(session, _EXTEND)
        self._due = sent_at + self.term_s / 4

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next sign of life."""
        return time.monotonic() >= self._due

    def hold(self, session: Session) -> None:
        """Begin a write transaction: no other process can take over before it commits.

        If another process has taken over already, raises Unavailable (NOT_ACTIVE) and ends this
        process."""
        self._execute(session, _HOLD)

    def check(self, session: Session) -> None:
        """Raise as `hold`, without the lock."""
        self._execute(session, _CHECK)

    def release(self, engine: Engine) -> None:
        """End the term, so that another process can take over at once."""
        # the server is away: the term ends by itself
        with suppress(DBAPIError), engine.begin() as connection:
            connection.execute(text(_END), {"purpose": self.purpose, "number": self.number})

    def _execute(self, session: Session | Connection, statement: str) -> None:
        values = {"purpose": self.purpose, "number": self.number, "term_s": self.term_s}
        if session.execute(text(statement), values).scalar() is None:
            logger.critical("another process has taken over the database; exiting")
            os.kill(os.getpid(), signal.SIGTERM)
            raise Unavailable("another process has taken over the database", reason=NOT_ACTIVE)


class FileLock:
    """A lock on `<file>.lock`, held from construction until `release` or the end of the process,
    even by a kill."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidInput (DATABASE_IN_USE) while another process holds the lock."""
        lock = path.with_name(f"{path.name}.lock")
        try:
            self._descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise unwritable(lock, error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip()
            os.close(self._descriptor)
            holder = f"process {holder}" if holder else "another process"
            problem = (
                f"the database {path} is in use by {holder}; only one may be active, stop it first"
            )
            raise InvalidInput(
                problem, field="database", reason="DATABASE_IN_USE", database=str(path)
            ) from error
        os.truncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
