"""Time, so that tests can make it pass."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


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
