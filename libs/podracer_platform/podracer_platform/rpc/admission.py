"""How a server is shared by its callers, so that none keeps the others waiting.

    holders of leases   limited for each lease alone: renewals, commits and completions always find
                        room
    pods, control       limited by the server's calls
    clients             all together three quarters of the server's calls, each token a quarter,
                        half of it streams. A token has a few places for unary calls; its further
                        ones wait. Large requests, which take long in the event loop, take turns:
                        one of a token, and one of the server at a time

A call counts from before its request is read until it ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext

from podracer_core.errors import Exhausted
from podracer_platform.rpc import limits
from podracer_platform.rpc.tokens import Role

_OWN = frozenset({Role.POD, Role.CONTROL, Role.LEASE})
"""The roles of the installation's own processes; all others are clients."""


class Call:
    """A call in progress, of a caller with `role`."""

    def __init__(
        self, role: Role, caller: _Caller, large: asyncio.Semaphore, large_bytes: int
    ) -> None:
        self._is_client, self._caller = role not in _OWN, caller
        self._large, self._large_bytes = large, large_bytes
        self._bytes = 0

    def place(self) -> AbstractAsyncContextManager[None]:
        """One of the caller's places: wait for it before the request is read."""
        return self._caller.places if self._is_client else nullcontext()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for it before a request that has been read is parsed."""
        if not self._is_client or self._bytes < self._large_bytes:
            yield
            return
        async with self._caller.large, self._large:
            yield

    def hold(self, size_bytes: int) -> None:
        """The call's latest request has this size. Raises Exhausted if the caller has too many
        bytes in flight."""
        self._caller.size_bytes += size_bytes - self._bytes
        self._bytes = size_bytes
        if self._is_client and self._caller.size_bytes > limits.TOKEN_BYTES:
            raise _overloaded(f"this token has more than {limits.TOKEN_BYTES} bytes in flight")

    def end(self) -> None:
        """The call is over."""
        self._caller.size_bytes -= self._bytes


class Admission:
    """Counts calls, streams and bytes, of the server and of each token."""

    def __init__(
        self, calls: int, places: int = limits.PLACES, large_bytes: int = limits.LARGE_BYTES
    ) -> None:
        """`places`: of a token; `large_bytes`: from this size on a request is large."""
        self._calls, self._places = calls, places
        self._large, self._large_bytes = asyncio.Semaphore(1), large_bytes
        self._all = _Count(calls, "the server")
        self._clients = _Count(max(calls * 3 // 4, 1), "the server")
        self._callers: dict[Hashable, _Caller] = {}

    @contextmanager
    def one_call(self, role: Role, token: Hashable, *, is_stream: bool) -> Iterator[Call]:
        """Count a call. Raises Exhausted at a limit, with the seconds after which to retry, random
        by caller."""
        caller = self._callers.get(token) or _Caller(self._calls, self._places)
        counts = [self._all]
        if role is Role.LEASE:
            counts = [caller.lease]
        elif role not in _OWN:
            counts += [self._clients, caller.calls, *([caller.streams] if is_stream else [])]
        for count in counts:
            count.require_room()
        for count in (caller.open, *counts):
            count.now += 1
        self._callers[token] = caller
        call = Call(role, caller, self._large, self._large_bytes)
        try:
            yield call
        finally:
            call.end()
            for count in (caller.open, *counts):
                count.now -= 1
            if not caller.open.now:
                del self._callers[token]


class _Count:
    def __init__(self, most: int, whose: str, what: str = "calls") -> None:
        self.now = 0
        self._most = most
        self._what = f"{whose} is at its limit of {most} concurrent {what}"

    def require_room(self) -> None:
        if self.now >= self._most:
            raise _overloaded(self._what)


class _Caller:
    """What a token has in flight."""

    def __init__(self, calls: int, places: int) -> None:
        most = max(calls // 4, 1)
        self.open = _Count(calls, "this token")
        self.lease = _Count(limits.LEASE_CALLS, "this lease")
        self.calls = _Count(most, "this token")
        self.streams = _Count(max(most // 2, 1), "this token", "streams")
        self.places, self.large = asyncio.Semaphore(places), asyncio.Semaphore(1)
        self.size_bytes = 0


def _overloaded(problem: str) -> Exhausted:
    wait_s = round(random.uniform(*limits.OVERLOADED_RETRY_S), 3)  # noqa: S311 - no secret
    return Exhausted(problem, reason="OVERLOADED", retry_after_s=wait_s)
