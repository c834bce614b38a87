"""Who may write to a PostgreSQL database now: the process that has opened it last.

An advisory lock is lost with its connection, so after a network failure two processes may each believe that it is
theirs. Each therefore takes a number at its start, one more than the last, and every transaction that writes looks
first whether there is a newer one. Whoever finds one writes nothing and ends. SQLite has no need of it: a lock on a
file lasts as long as the process.
"""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import dataclass

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from podracer_core.errors import PreconditionFailed

__all__ = ["TABLE", "Tenure"]

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
