"""A clock that skips idle time, in which no call is in progress."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time


class SkippingClock:
    """Runs as the wall clock does while any of its tasks is at work, and jumps to the next
    appointment when all sleep.

    A task that waits for a server is at work: what servers take, alone or because many call them at
    once, counts as it is. Training, which is only slept through, takes no time of the wall. For one
    event loop; every task that sleeps here has to be counted by `enter` and `leave`."""

    def __init__(self) -> None:
        self._skipped_s = 0.0
        self._began = time.monotonic()
        self._at_work = 0
        self._appointments: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def now(self) -> float:
        """Seconds since the clock was made, those that were skipped included."""
        return time.monotonic() - self._began + self._skipped_s

    @property
    def wall_s(self) -> float:
        """Seconds since the clock was made that have really passed."""
        return time.monotonic() - self._began

    def enter(self) -> None:
        """One more task that sleeps on this clock; it is at work until it sleeps."""
        self._at_work += 1

    def leave(self) -> None:
        """One of them has ended, at work."""
        self._at_work -= 1
        self._look()

    async def sleep_until(self, moment: float) -> None:
        """Returns at `moment`, or at once where that has passed. A task that is cancelled here
        counts as at work."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._appointments, (moment, next(self._numbers), future))
        self._at_work -= 1
        self._look()
        try:
            await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                self._at_work += 1
            raise

    def _look(self) -> None:
        """Wake sleepers that are due. While no call is in progress, skip to the first of their
        deadlines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._appointments:
            moment, _, future = self._appointments[0]
            if future.cancelled():
                heapq.heappop(self._appointments)
                continue
            ahead_s = moment - self.now
            if ahead_s > 0.0 and self._at_work:
                self._timer = asyncio.get_running_loop().call_later(ahead_s, self._look)
                return
            self._skipped_s += max(0.0, ahead_s)
            heapq.heappop(self._appointments)
            self._at_work += 1
            future.set_result(None)


class WallClock(SkippingClock):
    """The same, but nothing is skipped: an appointment is kept when the wall's clock says so."""

    async def sleep_until(self, moment: float) -> None:
        await asyncio.sleep(max(moment - self.now, 0.0))
