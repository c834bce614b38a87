"""A service's database: sessions to read, and sessions to write of which there is one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from podracer_core.database.instance_lock import InstanceLock
from podracer_core.database.location import make_durable, make_engine, parse_url, prepare_file, translated_errors
from podracer_core.database.migration import upgrade
from podracer_core.database.tenure import Tenure


class Database:
    """What `open_database` gives; `close` it, or use it as an asynchronous context."""

    def __init__(self, url: URL, engine: AsyncEngine, lock: InstanceLock, tenure: Tenure | None = None) -> None:
        self._url = url
        self._tenure = tenure
        self._engine = engine
        self._lock = lock
        self._sessions = async_sessionmaker(engine, expire_on_commit=False)
        self._writer = asyncio.Lock()
        self._writing: asyncio.Task[object] | None = None

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A session that sees one snapshot; nothing that it changes is kept."""
        with translated_errors(self._url):
            async with self._sessions() as session:
                yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """A session whose changes are durable once the block has been left; an exception inside takes all back.

        Writers wait for one another, so what is read inside cannot change before the commit. Keep the block short,
        and never await another service in it. Raises Unavailable when the disk is full or fails, or the server is away:
        nothing was written; and PreconditionFailed (NOT_ACTIVE) once another process has taken over.
        """
        if self._writing is not None and self._writing is asyncio.current_task():
            raise RuntimeError("a write within a write would wait for itself")
        async with self._writer:
            self._writing = asyncio.current_task()
            try:
                with translated_errors(self._url):
                    async with self._sessions.begin() as session:
                        if self._tenure is not None:
                            await self._tenure.check(session)
                        yield session
            finally:
                self._writing = None

    async def close(self) -> None:
        """Wait for the present writer, close all connections and let another process have the database."""
        async with self._writer:
            await self._engine.dispose()
            self._lock.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def open_database(url: str, migrations_package: str) -> Database:
    """Lock the database for this process, bring its schema up to date and return it.

    `url` is `sqlite:////absolute/path` (the folder is made) or `postgresql://…`; `migrations_package` the dotted name
    of the service's migrations (see `migration.upgrade`). Raises InvalidInput, with a message for people, for a URL
    of another form, a folder that cannot be written, a database in use or too new; DataCorrupted for a file that is
    no database; Unavailable where the server cannot be reached.
    """
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
        engine.dispose()
    except BaseException:
        lock.release()
        raise
    if is_file:
        asynchronous = create_async_engine(parsed.set(drivername="sqlite+aiosqlite"))
        make_durable(asynchronous.sync_engine)
    else:
        # Every snapshot and every write as if alone, as with SQLite; connections that died with the server are noticed.
        asynchronous = create_async_engine(parsed, isolation_level="REPEATABLE READ", pool_pre_ping=True)
    return Database(parsed, asynchronous, lock, tenure)
