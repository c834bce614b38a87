"""The durable state of a control service: SQLAlchemy over SQLite or PostgreSQL, Alembic migrations;
no torch.

This module holds `Database`. It runs read operations, and write operations one at a time, on the
newest revision of the schema.
location  checks the URL, and reports why a database cannot be used
tenure    one active process for a database: a lock on a file, or a row with a term
standby   waits for the end of another process's tenure

Needs the extra `podracer-core[database]`.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib.resources
import logging
import secrets
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self, TypeVar

from sqlalchemy import URL, BigInteger, Connection, Dialect, Engine, String, event, inspect, text
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.types import TypeDecorator

from podracer_core.errors import InvalidInput, PodracerError, Unavailable, plain
from podracer_platform.database.location import (
    make_engine,
    parse_url,
    prepare_file,
    translated_errors,
)
from podracer_platform.database.tenure import FileLock, Tenure
from podracer_platform.telemetry.metrics import DATABASE

__all__ = ["Database", "UtcTime", "open_database"]

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
            self._tenure.look
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


logger = logging.getLogger(__name__)

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
