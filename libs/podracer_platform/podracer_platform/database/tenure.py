"""Only one process may write to a database: the active one.

A SQLite file is locked for as long as its process lives. PostgreSQL cannot tell a dead process from
one behind a broken connection. A row therefore names the active process and the time, by the
server's clock, at which its term ends unless it gives another sign of life. After that another
process may take over, with the next number. Every write transaction locks the row with its own
number until it commits: a process that was paused, and resumes after another has taken over, writes
nothing."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from podracer_core.errors import InvalidInput, Unavailable
from podracer_platform.database.location import unwritable

logger = logging.getLogger(__name__)

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
_LOOK = f"SELECT number FROM {TABLE} {_OURS}"  # noqa: S608
_HOLD = f"{_LOOK} FOR SHARE"


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

    def look(self, session: Session) -> None:
        """Raise as `hold`, without the lock."""
        self._execute(session, _LOOK)

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
            raise _in_use(path, f"process {holder}" if holder else "another process") from error
        os.truncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _in_use(path: Path, holder: str) -> InvalidInput:
    problem = f"the database {path} is in use by {holder}; only one may be active, stop it first"
    return InvalidInput(problem, field="database", reason="DATABASE_IN_USE", database=str(path))
