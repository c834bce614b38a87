"""One active process for a database: two would each believe that they alone decide."""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from podracer_core.database.location import unwritable
from podracer_core.errors import FieldViolation, InvalidInput, Unavailable

PATIENCE_S = 10.0
"""How long a PostgreSQL server may take to notice that the former holder of the lock has gone."""
_POLL_S = 0.1


class InstanceLock:
    """Held from construction to `release`, or until the process ends, however it ends.

    A lock on `<file>.lock` for SQLite, an advisory lock named after `purpose` for PostgreSQL.
    Raises InvalidInput (DATABASE_IN_USE) when another process has it: at once for SQLite, after PATIENCE_S for
    PostgreSQL, where a session outlives its process by a moment.
    """

    def __init__(self, url: URL, purpose: str) -> None:
        self._descriptor: int | None = None
        self._connection: Connection | None = None
        if url.get_backend_name() == "sqlite":
            assert url.database is not None, "parse_url refuses a URL without a file"
            self._descriptor = _lock_file(Path(url.database + ".lock"))
        else:
            self._connection = _lock_server(url, purpose)

    def release(self) -> None:
        """Let another process have the database; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        if self._connection is not None:
            with suppress(DBAPIError):  # the server is away, and has let the lock go
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))  # closing alone is noticed later
            self._connection.close()
            self._connection.engine.dispose()
        self._descriptor = self._connection = None


def _lock_file(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        raise _in_use(str(path).removesuffix(".lock"), f"process {holder}" if holder else "another process") from error
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def _lock_server(url: URL, purpose: str) -> Connection:
    name = url.render_as_string(hide_password=True)
    try:
        connection = create_engine(url, pool_size=1, isolation_level="AUTOCOMMIT").connect()
        key = zlib.crc32(purpose.encode())
        locked, deadline = _try_lock(connection, key), time.monotonic() + PATIENCE_S
        while not locked and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            locked = _try_lock(connection, key)
    except OperationalError as error:
        reason = " ".join(str(error.orig).split())
        raise Unavailable(f"the database {name} cannot be reached: {reason}", database=name) from error
    if not locked:
        connection.close()
        raise _in_use(name, "another process")
    return connection


def _try_lock(connection: Connection, key: int) -> bool:
    return bool(connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}).scalar_one())


def _in_use(name: str, holder: str) -> InvalidInput:
    problem = f"the database {name} is in use by {holder}; only one may be active, stop it first"
    return InvalidInput(
        problem, reason="DATABASE_IN_USE", violations=[FieldViolation("database", problem)], database=name
    )
