"""Transactions of the domain: plain synchronous code over a session, run one writing at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.orm import Session

from podracer_core.database import Database
from podracer_orchestrator.changes import ChangeFeed, touched

Result = TypeVar("Result")


class Transactions:
    """Runs functions of a session, and notifies `changes` of what they touched once that is durable."""

    def __init__(self, database: Database, changes: ChangeFeed) -> None:
        self._database = database
        self._changes = changes

    async def write(self, operation: Callable[[Session], Result]) -> Result:
        """Run a transaction that changes something; returns once it is durable.

        It is carried to its end also where the caller is cancelled meanwhile: a pod that hung up has still
        committed. Raises what `operation` raises, after which nothing has changed, and Unavailable where the
        database cannot be written.
        """
        return await asyncio.shield(asyncio.ensure_future(self._write(operation)))

    async def read(self, operation: Callable[[Session], Result]) -> Result:
        """Run a transaction that only reads one snapshot, beside the writing one."""
        return await self._database.read(operation)

    async def check(self) -> None:
        """Raise unless the database answers."""
        await self._database.check()

    async def close(self) -> None:
        """Close the database, after the transaction that is running."""
        await self._database.close()

    async def _write(self, operation: Callable[[Session], Result]) -> Result:
        def noting_topics(session: Session) -> tuple[Result, frozenset[str]]:
            return operation(session), touched(session)

        result, topics = await self._database.write(noting_topics)
        self._changes.notify(topics)
        return result
