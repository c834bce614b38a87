"""Whether it pays that workers collect ahead of the learner."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

__all__ = ["PaceTrial"]

_ROLLOUTS = 12
_SETTLING = 2  # the first rollouts are slow for reasons of their own
_WORTHWHILE = 0.3


class PaceTrial:
    """Measures a few rollouts in lock-step: how long the learner waits for them, and how long it trains on them.

    Collecting ahead hides the shorter of the two, at the price of weights that are one version old: on small problems
    that price is real, so it is paid only where the shorter one is three tenths of both or more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mark: float | None = None
        self._waits: list[float] = []
        self._trainings: list[float] = []
        self.collect_ahead = False

    def wait(self) -> None:
        """The learner begins to wait for a rollout."""
        if self._mark is not None and len(self._trainings) < _ROLLOUTS:
            self._trainings.append(self._clock() - self._mark)
        self._mark = self._clock()

    def go_on(self) -> None:
        """The rollout is there."""
        if self._mark is not None and len(self._waits) < _ROLLOUTS:
            self._waits.append(self._clock() - self._mark)
            if len(self._waits) == _ROLLOUTS:
                self._decide()
        self._mark = self._clock()

    def _decide(self) -> None:
        wait_s = statistics.median(self._waits[_SETTLING:])
        training_s = statistics.median(self._trainings[_SETTLING:])
        self.collect_ahead = min(wait_s, training_s) >= _WORTHWHILE * (wait_s + training_s)
