"""Which process may write to a database: the active one.

A SQLite file is locked for as long as its process lives. PostgreSQL cannot tell a dead process from one behind a cut
wire, so a row names the active process and the moment, by the server's clock, at which its term ends without another
sign of life. Then another process may take over, with the next number. Every transaction that writes holds the row with
its own number until it commits: a process that was paused, and wakes up after another has taken over, writes nothing.
"""

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

from podracer_core.database.location import unwritable
from podracer_core.errors import InvalidInput, Unavailable

logger = logging.getLogger(__name__)

TABLE = "podracer_active"
NOT_ACTIVE = "NOT_ACTIVE"
"""Reason of an Unavailable: another process is the active one."""

_MAKE = f"""CREATE TABLE IF NOT EXISTS {TABLE}
    (purpose text PRIMARY KEY, number bigint NOT NULL, holder text NOT NULL, expiry timestamptz NOT NULL)"""
_UNTIL = "clock_timestamp() + make_interval(secs => :term_s)"
_TAKE = f"""INSERT INTO {TABLE} AS active VALUES (:purpose, 1, :holder, {_UNTIL})
    ON CONFLICT (purpose) DO UPDATE SET number = active.number + 1, holder = :holder, expiry = {_UNTIL}
    WHERE active.expiry < clock_timestamp() OR active.holder = :holder RETURNING number"""  # noqa: S608 - constants
_SAME_MOMENT = ("23505", "40001")
"""SQLSTATE where another process makes the table, or takes over, in this moment."""
_OURS = "WHERE purpose = :purpose AND number = :number"
_EXTEND = f"UPDATE {TABLE} SET expiry = {_UNTIL} {_OURS} RETURNING number"  # noqa: S608
_END = f"UPDATE {TABLE} SET expiry = '-infinity' {_OURS}"  # noqa: S608
_LOOK = f"SELECT number FROM {TABLE} {_OURS}"  # noqa: S608
_HOLD = f"{_LOOK} FOR SHARE"


@dataclass(slots=True)
class Tenure:
    """One process's turn as the writer of `purpose` in PostgreSQL: `term_s` seconds from the last sign of life."""

    purpose: str
    term_s: float
    number: int = 0
    _due: float = field(default=0.0, init=False)

    def take(self, connection: Connection, holder: str) -> None:
        """Begin it, with the end of this transaction; the process before writes no more.

        Raises Unavailable (NOT_ACTIVE) while that shows signs of life, unless it had the name `holder`, too.
        """
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
        """A sign of life. Raises as `hold`."""
        sent_at = time.monotonic()
        self._execute(session, _EXTEND)
        self._due = sent_at + self.term_s / 4

    @property
    def is_due(self) -> bool:
        """Whether the next sign of life should not wait any longer."""
        return time.monotonic() >= self._due

    def hold(self, session: Session) -> None:
        """At the beginning of a transaction that writes: it cannot be taken over from before it commits.

        Raises Unavailable (NOT_ACTIVE) where that has happened, and has the process end.
        """
        self._execute(session, _HOLD)

    def look(self, session: Session) -> None:
        """Raises as `hold`, and holds nothing."""
        self._execute(session, _LOOK)

    def release(self, engine: Engine) -> None:
        """Let another process begin at once."""
        with suppress(DBAPIError), engine.begin() as connection:  # the server is away: the term ends by itself
            connection.execute(text(_END), {"purpose": self.purpose, "number": self.number})

    def _execute(self, session: Session | Connection, statement: str) -> None:
        values = {"purpose": self.purpose, "number": self.number, "term_s": self.term_s}
        if session.execute(text(statement), values).scalar() is None:
            logger.critical("another process has taken over the database; exiting")
            os.kill(os.getpid(), signal.SIGTERM)
            raise Unavailable("another process has taken over the database", reason=NOT_ACTIVE)


class FileLock:
    """A lock on `<file>.lock`, held from construction to `release`, or until the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidInput (DATABASE_IN_USE) when another process has it."""
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
        """Let another process have the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _in_use(path: Path, holder: str) -> InvalidInput:
    problem = f"the database {path} is in use by {holder}; only one may be active, stop it first"
    return InvalidInput(problem, field="database", reason="DATABASE_IN_USE", database=str(path))
