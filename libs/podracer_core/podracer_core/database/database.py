"""A service's database: operations that read, and operations that write of which there is one at a time."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import Session, sessionmaker

from podracer_core.database.instance_lock import InstanceLock
from podracer_core.database.location import make_engine, parse_url, prepare_file, translated_errors
from podracer_core.database.migration import upgrade
from podracer_core.database.tenure import Tenure
from podracer_core.errors import Unavailable
from podracer_core.telemetry.metrics import DATABASE

Result = TypeVar("Result")

READERS = 4
TURN_S = 0.0005
"""How soon a thread gets the interpreter from another one that works. A transaction asks for it at every statement:
with Python's own 5 ms, beside an event loop that has much to do, it would take a quarter of a second."""
END_S = 10.0


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

    async def read(self, operation: Callable[[Session], Result]) -> Result:
        """Run an operation over one snapshot, beside the writing one; nothing that it changes is kept."""
        with DATABASE.timed(operation="read"):
            return await self._in_thread(self._readers, self._read, operation)

    async def write(self, operation: Callable[[Session], Result]) -> Result:
        """Run an operation; returns once its changes are durable, and an exception inside takes all back.

        Writers wait for one another, so what one reads cannot change before it commits. It is carried to its end also
        where the caller is cancelled meanwhile: who hung up has still written. Raises Unavailable when the disk is full
        or fails, or the server is away: nothing was written; and PreconditionFailed (NOT_ACTIVE) once another process
        has taken over.
        """
        with DATABASE.timed(operation="write"):
            return await asyncio.shield(self._in_thread(self._writer, self._write, operation))

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

    def _write(self, operation: Callable[[Session], Result]) -> Result:
        with translated_errors(self._url), self._sessions.begin() as session:
            if self._tenure is not None:
                self._tenure.check(session)
            return operation(session)

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
