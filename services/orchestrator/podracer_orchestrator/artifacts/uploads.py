"""Uploads in progress: what they reserve, and what of them may lie in the folder for temporary files at a time.

They are in memory alone: one process serves, and no upload outlives it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from podracer_core.attachments.limits import MAX_DATA_BYTES
from podracer_core.errors import DeadlineExpired, Exhausted

Message = TypeVar("Message")

PROJECT_BYTES, ALL_BYTES = MAX_DATA_BYTES, MAX_DATA_BYTES * 7 // 4
"""The most bytes of a project's drafts, and of all drafts: of the 2 GiB that deploy/k8s has for them."""
PROJECT_UPLOADS = 8
"""The most uploads of a project at a time; others wait."""
MOST_WAITING = 100
WAIT_S = 60.0
IDLE_S = 30.0
"""The longest time between two messages of an upload."""
SLOWEST_BYTES_PER_S = 1 << 18


class Uploads:
    """The uploads in progress by project, and a lock for each object."""

    def __init__(self) -> None:
        self._reserved: dict[str, list[int]] = defaultdict(list)
        self._drafts: dict[str, list[int]] = defaultdict(list)
        self._ended = asyncio.Event()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def storing(self, key: str) -> asyncio.Lock:
        """The lock that is held from storing an object until recording it, and while deleting it."""
        return self._locks.setdefault(key, asyncio.Lock())

    @asynccontextmanager
    async def room(
        self, project: str, size_bytes: int, require: Callable[[int, int], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Reserve the bytes of an upload, and wait for room for its draft.

        `require` raises unless the project may also have this one, besides that many bytes and uploads in progress.
        Raises Exhausted if there is no room.
        """
        before = self._reserved[project]
        if len(before) >= MOST_WAITING:
            raise _busy(f"the project {project} has {len(before)} uploads in progress")
        others = sum(before), len(before)
        before.append(size_bytes)
        try:
            await require(*others)
            await self._wait(project, size_bytes)
            self._drafts[project].append(size_bytes)
            try:
                yield
            finally:
                self._drafts[project].remove(size_bytes)
                self._ended.set()
                self._ended = asyncio.Event()
        finally:
            before.remove(size_bytes)

    async def _wait(self, project: str, size_bytes: int) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not self._fits(project, size_bytes):
                    await self._ended.wait()
        except TimeoutError:
            raise _busy(f"other uploads leave no room for {size_bytes} bytes") from None

    def _fits(self, project: str, size_bytes: int) -> bool:
        own, everything = self._drafts[project], sum(map(sum, self._drafts.values()))
        fits = sum(own) + size_bytes <= PROJECT_BYTES and everything + size_bytes <= ALL_BYTES
        return fits and len(own) < PROJECT_UPLOADS


@asynccontextmanager
async def time_limit(size_bytes: int) -> AsyncIterator[None]:
    """Raises DeadlineExpired where so many bytes take longer than the slowest client is given."""
    limit_s = IDLE_S + size_bytes / SLOWEST_BYTES_PER_S
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise DeadlineExpired(f"{size_bytes} bytes took more than {limit_s:.0f} s", reason="UPLOAD_SLOW") from None


async def in_time(messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """The messages of an upload. Raises DeadlineExpired if one is late."""
    while True:
        try:
            async with asyncio.timeout(IDLE_S):
                message = await anext(messages, None)
        except TimeoutError:
            raise DeadlineExpired(f"nothing was received for {IDLE_S:g} s", reason="UPLOAD_IDLE") from None
        if message is None:
            return
        yield message


def _busy(problem: str) -> Exhausted:
    return Exhausted(f"{problem}: try again later", reason="UPLOADS_BUSY", retry_after_s=5)
