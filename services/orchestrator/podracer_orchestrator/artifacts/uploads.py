"""Uploads in progress: what they reserve, and what of them may lie in the folder for temporary
files at a time.

They are in memory alone: one process serves, and no upload outlives it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from podracer_core.errors import Exhausted
from podracer_platform.attachments.limits import MAX_DATA_BYTES

Message = TypeVar("Message")

PROJECT_BYTES, ALL_BYTES = MAX_DATA_BYTES, MAX_DATA_BYTES * 7 // 4
"""The most bytes of a project's drafts, and of all drafts: of the 2 GiB that deploy/k8s has for
them."""
PROJECT_UPLOADS, MOST_WAITING, WAIT_S = 8, 100, 60.0
"""The most uploads of a project at a time; others wait, so many and for so long."""
IDLE_S = 30.0
"""The longest time between two messages of an upload; all of them may take this, and as long as a
slow client needs."""
SLOWEST_BYTES_PER_S = 1 << 18


class Uploads:
    """The uploads in progress by project, and a lock for each object."""

    def __init__(self) -> None:
        self._reserved: dict[str, list[int]] = defaultdict(list)
        self._drafts: dict[str, list[int]] = defaultdict(list)
        self._ended = asyncio.Event()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def in_progress(self, project: str) -> tuple[int, int]:
        """The bytes and the number of a project's uploads that have been announced and not
        ended."""
        return sum(self._reserved[project]), len(self._reserved[project])

    def storing(self, key: str) -> asyncio.Lock:
        """The lock that is held from storing an object until recording it, and while deleting
        it."""
        return self._locks.setdefault(key, asyncio.Lock())

    @asynccontextmanager
    async def room(
        self, project: str, size_bytes: int, require: Callable[[int, int], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Reserve the bytes of an upload, and wait for room for its draft.

        `require` raises unless the project may also have this one, besides that many bytes and
        uploads in progress. Raises Exhausted if there is no room."""
        other_bytes, others = self.in_progress(project)
        if others >= MOST_WAITING:
            raise _busy(f"the project {project} has {others} uploads in progress")
        self._reserved[project].append(size_bytes)
        try:
            await require(other_bytes, others)
            await self._wait(project, size_bytes)
            self._drafts[project].append(size_bytes)
            try:
                yield
            finally:
                self._drafts[project].remove(size_bytes)
                self._ended.set()
                self._ended = asyncio.Event()
        finally:
            self._reserved[project].remove(size_bytes)

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


async def in_time(messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """The messages of an upload. Raises TimeoutError if one is late."""
    while True:
        async with asyncio.timeout(IDLE_S):
            message = await anext(messages, None)
        if message is None:
            return
        yield message


def _busy(problem: str) -> Exhausted:
    return Exhausted(f"{problem}: try again later", reason="UPLOADS_BUSY", retry_after_s=5)
