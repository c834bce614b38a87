"""Which of many alike things are worth a span of their own: the first ones, and ever fewer of the others."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST = 3
_PAUSE_S = 5.0


class Occasions:
    """The first three, and then one after 5 s, 10 s, 20 s and so on: a long round has few more than a short one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken = 0
        self._next_at = 0.0
        self._pause_s = _PAUSE_S

    def is_next(self) -> bool:
        """Whether this is one of them."""
        now = self._clock()
        if self._taken >= _FIRST:
            if now < self._next_at:
                return False
            self._pause_s *= 2
        self._taken += 1
        self._next_at = now + self._pause_s
        return True
