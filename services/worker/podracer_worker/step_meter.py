"""Counts environment steps and how fast they come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


class StepMeter:
    """Totals since the start and the rate over the last `window_s` seconds. Safe to use from several threads."""

    def __init__(self, window_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s, self._clock = window_s, clock
        self._lock = threading.Lock()
        self._entries: deque[tuple[float, int]] = deque()
        self.total = 0

    def add(self, steps: int) -> None:
        with self._lock:
            self.total += steps
            self._entries.append((self._clock(), steps))
            self._forget()

    def per_second(self) -> float:
        """0 while nothing has come within the window."""
        with self._lock:
            self._forget()
            return sum(steps for _, steps in self._entries) / self._window_s

    def _forget(self) -> None:
        oldest = self._clock() - self._window_s
        while self._entries and self._entries[0][0] < oldest:
            self._entries.popleft()
