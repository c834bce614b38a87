"""The durable state of a control service: SQLAlchemy over SQLite or PostgreSQL, Alembic migrations; no torch.

Here is the database: operations that read, and operations that write of which there is one at a time, at the newest
revision of its schema.
location  the URL, checked, and what is said when it cannot be used
tenure    one active process for a database, and who may write to PostgreSQL after that lock was lost

Needs the extra `podracer-core[database]`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib.resources
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import URL, BigInteger, Connection, Dialect, Engine, inspect, text
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.types import TypeDecorator

from podracer_core.database.location import make_engine, parse_url, prepare_file, translated_errors
from podracer_core.database.session import WritingSession
from podracer_core.database.tenure import InstanceLock, Tenure
from podracer_core.errors import InvalidInput, Unavailable
from podracer_core.telemetry.metrics import DATABASE

__all__ = ["Database", "UtcTime", "open_database"]

Result = TypeVar("Result")

READERS = 4
AT_ONCE = 64
"""Operations that write in one transaction at most; what waits while one runs goes together into the next."""
MOST_KEPT = 30_000
"""Rows that the writing session keeps, so that none is read twice; once there are more it begins anew."""
TURN_S = 0.0005
"""How soon a thread gets the interpreter from another one that works. A transaction asks for it at every statement:
with Python's own 5 ms, beside an event loop that has much to do, it would take a quarter of a second."""
END_S = 10.0


@dataclass(frozen=True, slots=True)
class _Write:
    """An operation that waits for its turn."""

    operation: Callable[[Session], Any]
    outcome: Future[Any]


class Database:
    """What `open_database` gives; `close` it, or use it as an asynchronous context.

    An operation is plain code over a session. It runs in a thread of the database's own, so that the event loop waits
    for no disk and no server: what else it uses has to bear that. Whatever it returns has been loaded; it stays usable.
    """

    def __init__(self, url: URL, engine: Engine, lock: InstanceLock, tenure: Tenure | None = None) -> None:
        self._url = url
        self._tenure = tenure
        self._engine = engine
        self._lock = lock
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        self._readers = ThreadPoolExecutor(READERS, "database-reader")
        self._writer = ThreadPoolExecutor(1, "database-writer")
        self._waiting: deque[_Write] = deque()
        self._writing: WritingSession | None = None

    async def read(self, operation: Callable[[Session], Result]) -> Result:
        """Run an operation over one snapshot, beside the writing one; nothing that it changes is kept."""
        with DATABASE.timed(operation="read"):
            read = functools.partial(contextvars.copy_context().run, self._read, operation)
            return await asyncio.wrap_future(self._submit(self._readers, read))

    async def write(self, operation: Callable[[Session], Result]) -> Result:
        """Run an operation; returns once its changes are durable, and an exception inside takes all back.

        Writers wait for one another, so what one reads cannot change before it commits; those that wait share a
        transaction, in which one that fails takes back its own part alone. It is carried to its end even if the caller
        is cancelled meanwhile, and may be run twice: what else it changes has to bear that. The session keeps its rows
        for later operations: return values, not rows. Raises Unavailable when the disk is full or fails, or the server
        is away: nothing was written; and PreconditionFailed (NOT_ACTIVE) once another process has taken over.
        """
        with DATABASE.timed(operation="write"):
            # In the caller's context: what is written there belongs to the same span.
            run = contextvars.copy_context().run
            write = _Write(lambda session: run(operation, session), Future())
            write.outcome.set_running_or_notify_cancel()  # from here on nobody cancels it
            self._waiting.append(write)
            self._submit(self._writer, self._write_waiting)
            return await asyncio.shield(asyncio.wrap_future(write.outcome))

    async def check(self) -> None:
        """Raise unless the database answers."""
        await self.read(lambda session: session.execute(text("SELECT 1")).scalar_one())

    async def close(self) -> None:
        """Wait for the operations that run, for a while; close all connections and let another process have the
        database: at once, or where one does not end when this process does."""
        ending = threading.Thread(target=self._end, name="database-end", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, END_S)
        if not ending.is_alive():
            self._engine.dispose()
            self._lock.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _read(self, operation: Callable[[Session], Result]) -> Result:
        with translated_errors(self._url), self._sessions() as session:
            return operation(session)

    def _write_waiting(self) -> None:
        """Run what waits in one transaction; where that fails, once more with a savepoint around each part."""
        batch = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
        if not batch:
            return
        try:
            try:
                results = self._write(batch)
            except Exception:
                if len(batch) == 1:
                    raise
                results = self._write(batch, apart=True)
        except BaseException as error:  # noqa: BLE001 - it is raised where the operations came from
            results = [error] * len(batch)
        for write, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                write.outcome.set_exception(result)
            else:
                write.outcome.set_result(result)

    def _write(self, batch: Sequence[_Write], *, apart: bool = False) -> list[Any]:
        """What each operation returns, or `apart` raises."""
        if self._writing is None or len(self._writing.kept) > MOST_KEPT:
            self._writing = WritingSession(self._engine, expire_on_commit=False)
        session = self._writing
        try:
            with translated_errors(self._url), session.begin():
                session.bound = session.connection()
                if self._tenure is not None:
                    self._tenure.check(session)
                return [self._apart(session, each) if apart else each.operation(session) for each in batch]
        except BaseException:
            self._writing = None  # its rows may not be what is stored
            session.close()
            raise

    def _apart(self, session: Session, write: _Write) -> Any:
        try:
            with translated_errors(self._url), session.begin_nested():
                return write.operation(session)
        except Exception as error:  # noqa: BLE001
            return error

    @staticmethod
    def _submit(executor: ThreadPoolExecutor, run: Callable[[], Result]) -> Future[Result]:
        try:
            return executor.submit(run)
        except RuntimeError as error:
            raise Unavailable("the database is being closed", reason="DATABASE_CLOSED") from error

    def _end(self) -> None:
        for executor in (self._writer, self._readers):
            executor.shutdown()


def open_database(url: str, migrations_package: str) -> Database:
    """Lock the database for this process, bring its schema up to date and return it. Sets the process's TURN_S.

    `url` is `sqlite:////absolute/path` (the folder is made) or `postgresql://…`; `migrations_package` the dotted name
    of the service's migrations (see `migration.upgrade`). Raises InvalidInput, with a message for people, for a URL
    of another form, a folder that cannot be written, a database in use or too new; DataCorrupted for a file that is
    no database; Unavailable where the server cannot be reached.
    """
    sys.setswitchinterval(TURN_S)
    parsed = parse_url(url)
    is_file = parsed.get_backend_name() == "sqlite"
    if is_file:
        prepare_file(Path(parsed.database or ""))
    lock = InstanceLock(parsed, migrations_package)
    try:
        engine = make_engine(parsed)
        with translated_errors(parsed):
            upgrade(engine, migrations_package)
            tenure = None if is_file else Tenure.take(engine, migrations_package)
    except BaseException:
        lock.release()
        raise
    return Database(parsed, engine, lock, tenure)


logger = logging.getLogger(__name__)

VERSION_TABLE = "alembic_version"


def upgrade(engine: Engine, migrations_package: str) -> None:
    """Run what is missing, all in one transaction: killed half-way, it has not happened.

    `migrations_package` holds one file a revision, `<revision>_<what it does>.py` with revisions that sort
    (`r0001`, `r0002`). A database that is at the last one already costs one query, and Alembic is not imported.
    Raises InvalidInput for a database that a newer version of the service has written.
    """
    with (
        importlib.resources.as_file(importlib.resources.files(migrations_package)) as folder,
        engine.begin() as connection,
    ):
        current = current_revision(connection)
        if current != newest_revision(folder):
            _run(connection, folder, current)


def newest_revision(folder: Path) -> str:
    """The last revision of a folder of migrations, by its file's name."""
    return max(path.stem.split("_", 1)[0] for path in folder.glob("[!_]*.py"))


def current_revision(connection: Connection) -> str | None:
    """The revision that a database is at; None for an empty one."""
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
            f"the database is at revision {current}, which this version does not know: use the version that wrote it",
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


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime as whole microseconds since 1970 in UTC: exact, ordered, and with no zone to lose.

    SQLite's own DATETIME drops the zone. Raises ValueError for a naive datetime.
    """

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else self.microseconds(value)

    @staticmethod
    def microseconds(value: datetime) -> int:
        """As it is stored."""
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + value * _MICROSECOND
