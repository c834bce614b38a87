"""Whether it pays that workers collect ahead of the learner, and by how much."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

__all__ = ["MOST_AHEAD", "PaceTrial"]

logger = logging.getLogger(__name__)

MOST_AHEAD = 2
"""Rollouts under way at a worker at most: the oldest is used when the policy is two versions further."""

_ROLLOUTS = 12
_SETTLING = 2  # the first rollouts are slow for reasons of their own
_WORTHWHILE = 0.3


class PaceTrial:
    """Measures a few rollouts in lock-step: how long the learner waits for them, and how long it trains on them.

    Collecting ahead hides the shorter of the two, at the price of weights that are one version old: on small problems
    that price is real, so it is paid only where the shorter one is three tenths of both or more. Where the learner
    waits for longer than it trains, workers have one more rollout to go on with, so that they never wait for it to take
    theirs: they begin with it so late that the weights are no older. Where it trains for longer they would be.

    ahead   rollouts that workers should have to collect while the learner trains: 0 is lock-step
    """

    def __init__(self, ahead: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`ahead`: so many, whatever would be measured."""
        self._clock = clock
        self._mark: float | None = None
        self._waits: list[float] = []
        self._trainings: list[float] = []
        self._decided = ahead is not None
        self.ahead = ahead or 0

    def wait(self) -> None:
        """The learner begins to wait for a rollout."""
        if self._mark is not None and not self._decided:
            self._trainings.append(self._clock() - self._mark)
        self._mark = self._clock()

    def go_on(self) -> None:
        """The rollout is there."""
        if self._mark is not None and not self._decided:
            self._waits.append(self._clock() - self._mark)
            if len(self._waits) == _ROLLOUTS:
                self._decide()
        self._mark = self._clock()

    def _decide(self) -> None:
        wait_s = statistics.median(self._waits[_SETTLING:])
        training_s = statistics.median(self._trainings[_SETTLING:])
        if min(wait_s, training_s) >= _WORTHWHILE * (wait_s + training_s):
            self.ahead = MOST_AHEAD if wait_s > training_s else 1
        self._decided = True
        logger.info(
            "a rollout takes %.3f s, training on it %.3f s: workers collect %d ahead", wait_s, training_s, self.ahead
        )
