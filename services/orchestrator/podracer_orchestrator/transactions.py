"""Transactions of the domain, plain synchronous code over a session, and the topics that they
change.

Long polls, watchers and background tasks sleep until a topic has changed. A clock that tests can
replace.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy.orm import Session

from podracer_platform.database import Database

WORK = "work"
"""There may be work for a waiting pod, or an end of its wait."""
OUTBOX = "outbox"
"""There are calls to the leaderboard to be made."""
ENSEMBLE = "ensemble"
"""A job waits for the choice of the candidates in its ensemble."""
POOL = "pool"
"""The wanted number of pods may have changed."""
GENERATION = "generation"
"""A continuous job, or one of its generations, has begun or ended."""

_TOPICS = "podracer_topics"

Result = TypeVar("Result")


def job_topic(job_uid: str) -> str:
    """This job has a change that is visible to watchers."""
    return f"job/{job_uid}"


def project_topic(project: str) -> str:
    """A job of this project has a new event, or was deleted."""
    return f"project/{project}"


def due_topic(job_uid: str) -> str:
    """This job may have reached its end, by time or by an answer of the leaderboard. Nothing waits
    for this topic, see `Transactions`."""
    return f"due/{job_uid}"


def touch(session: Session, *topics: str) -> None:
    """Notify `topics` once the transaction of `session` is durable."""
    session.info.setdefault(_TOPICS, set()).update(topics)


def touched(session: Session) -> frozenset[str]:
    """The topics touched in this session."""
    return frozenset(session.info.get(_TOPICS, ()))


def touched_jobs(session: Session) -> list[str]:
    """The uids of the jobs among them."""
    return sorted(
        {
            topic.partition("/")[2]
            for topic in touched(session)
            if topic.startswith(("job/", "due/"))
        }
    )


class ChangeFeed:
    """A counter for each topic and the tasks that wait for it to grow. For one event loop."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = defaultdict(int)
        self._waiting: dict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def version(self, topic: str) -> int:
        """The counter of a topic. Read it before the state: `wait` then misses no change in
        between."""
        return self._versions[topic]

    def notify(self, topics: Iterable[str]) -> None:
        """Wake all tasks that wait for one of `topics`."""
        for topic in topics:
            self._versions[topic] += 1
            for future in self._waiting.pop(topic, ()):
                if not future.done():
                    future.set_result(None)

    def notify_all(self) -> None:
        """Wake all waiting tasks."""
        self.notify(list(self._versions))

    async def wait(self, topic: str, version: int, timeout_s: float) -> bool:
        """Wait until `topic` has grown past `version`; False if that does not happen within
        `timeout_s`."""
        if self._versions[topic] != version:
            return True
        future = asyncio.get_running_loop().create_future()
        self._waiting[topic].add(future)
        try:
            # Not wait_for: that of Python 3.11 forgets a cancellation that comes together with the
            # result.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, timeout_s)):
                    await future
        finally:
            self._waiting[topic].discard(future)
        return self._versions[topic] != version


class Transactions:
    """Runs functions of a session, and notifies `changes` of the topics they touched once the
    transaction is durable.

    `after_change` is called at the end of each transaction that writes, and is a part of it.
    """

    def __init__(
        self, database: Database, changes: ChangeFeed, after_change: Callable[[Session], None]
    ) -> None:
        self._database = database
        self._changes = changes
        self._after_change = after_change

    async def write(self, operation: Callable[[Session], Result]) -> Result:
        """Run a transaction that writes; returns once it is durable.

        It runs to its end even if the caller is cancelled: the commit of a pod that has
        disconnected counts. Raises the errors of `operation`, after which nothing has changed, and
        Unavailable if the database cannot be written."""
        return await asyncio.shield(asyncio.ensure_future(self._write(operation)))

    async def read(self, operation: Callable[[Session], Result]) -> Result:
        """Run a transaction that only reads, on one snapshot, in parallel with a writing one."""
        return await self._database.read(operation)

    async def check(self) -> None:
        """Raise unless the database answers."""
        await self._database.check()

    async def close(self) -> None:
        """Close the database, after the transaction that is running."""
        await self._database.close()

    async def _write(self, operation: Callable[[Session], Result]) -> Result:
        def noting_topics(session: Session) -> tuple[Result, frozenset[str]]:
            result = operation(session)
            self._after_change(session)
            return result, touched(session)

        result, topics = await self._database.write(noting_topics)
        self._changes.notify(topics)
        return result


class Clock:
    """A wall clock that never jumps: its time at the start, and a monotonic clock from then on."""

    def __init__(self) -> None:
        self._start = datetime.now(UTC)
        self._start_s = time.monotonic()

    def monotonic(self) -> float:
        """Seconds that only grow, for deadlines."""
        return time.monotonic()

    def now(self) -> datetime:
        """The time in UTC."""
        return self._start + timedelta(seconds=self.monotonic() - self._start_s)
