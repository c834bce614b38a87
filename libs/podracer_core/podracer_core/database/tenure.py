"""Who may write to a PostgreSQL database now: the process that has opened it last.

An advisory lock is lost with its connection, so after a network failure two processes may each believe that it is
theirs. Each therefore takes a number at its start, one more than the last, and every transaction that writes looks
first whether there is a newer one. Whoever finds one writes nothing and ends. SQLite has no need of it: a lock on a
file lasts as long as the process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from podracer_core.database.location import unwritable
from podracer_core.errors import InvalidInput, PreconditionFailed, Unavailable

logger = logging.getLogger(__name__)

TABLE = "podracer_tenures"

_MAKE = "CREATE TABLE IF NOT EXISTS podracer_tenures (purpose text PRIMARY KEY, number bigint NOT NULL)"
_TAKE = (
    "INSERT INTO podracer_tenures VALUES (:purpose, 1) "
    "ON CONFLICT (purpose) DO UPDATE SET number = podracer_tenures.number + 1 RETURNING number"
)
_NOW = "SELECT number FROM podracer_tenures WHERE purpose = :purpose FOR SHARE"


@dataclass(frozen=True, slots=True)
class Tenure:
    """One process's turn as the writer of `purpose`."""

    purpose: str
    number: int

    @classmethod
    def take(cls, engine: Engine, purpose: str) -> Tenure:
        """Begin one; whoever had it before writes no more."""
        with engine.begin() as connection:
            connection.execute(text(_MAKE))
            number = connection.execute(text(_TAKE), {"purpose": purpose}).scalar_one()
        return cls(purpose, int(number))

    def check(self, session: Session) -> None:
        """At the beginning of a transaction that writes: it cannot end before it commits.

        Raises PreconditionFailed (NOT_ACTIVE) where it has ended, and has the process end.
        """
        now = session.execute(text(_NOW), {"purpose": self.purpose}).scalar_one()
        if now != self.number:
            logger.critical("another process has taken over the database; this one ends")
            os.kill(os.getpid(), signal.SIGTERM)
            raise PreconditionFailed("another process has taken over the database", reason="NOT_ACTIVE")


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
    return InvalidInput(problem, field="database", reason="DATABASE_IN_USE", database=name)
