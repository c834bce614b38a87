"""Whether it pays to collect ahead of training, and by how much."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

MOST_AHEAD = 2
"""Rollouts under way at a worker at most: the oldest is used when the policy is two versions further."""

_ROLLOUTS = 12
_SETTLING = 2  # the first rollouts are slow for reasons of their own
_WORTHWHILE = 0.25
_GAIN = 0.9


class PaceTrial:
    """Measures some rollouts in lock-step: how long the learner waits for them, and how long it trains on them.

    Collecting ahead hides the shorter of the two, at the price of weights that are one version old: on small problems
    that price is real, so it is tried only where the shorter one is a quarter of both or more. It stays if a rollout
    with its training then takes nine tenths of the time or less; who shares busy cores, or one device, may gain
    nothing. Where the learner waits for longer than it trains, workers have one more rollout to go on with, so that
    they never wait for it to take theirs: they begin with it so late that the weights are no older. Where it trains for
    longer they would be.

    ahead   rollouts to be collected while the learner trains: 0 is lock-step
    """

    def __init__(
        self, ahead: int | None = None, clock: Callable[[], float] = time.monotonic, most: int = MOST_AHEAD
    ) -> None:
        """`ahead`: so many, whatever would be measured. `clock` is read only while something is; `most` limits
        both."""
        self._clock, self._most = clock, most
        self._mark: float | None = None
        self._waits: list[float] = []
        self._trainings: list[float] = []
        self._lock_step_s = 0.0
        self._decided = ahead is not None
        self.ahead = min(ahead or 0, most)

    def wait(self) -> None:
        """The learner begins to wait for a rollout."""
        if self._decided:
            return
        now = self._clock()
        if self._mark is not None:
            self._trainings.append(now - self._mark)
        self._mark = now

    def go_on(self) -> None:
        """The rollout is there."""
        if self._decided or self._mark is None:
            return
        now = self._clock()
        self._waits.append(now - self._mark)
        self._mark = now
        if len(self._waits) == _ROLLOUTS:
            self._decide()

    def _decide(self) -> None:
        wait_s = statistics.median(self._waits[_SETTLING:])
        training_s = statistics.median(self._trainings[_SETTLING:])
        if self.ahead:
            self._decided = True
            if wait_s + training_s > _GAIN * self._lock_step_s:
                self.ahead = 0
            text = "a rollout with its training takes %.3f s, in lock-step %.3f s: %d are collected ahead"
            logger.info(text, wait_s + training_s, self._lock_step_s, self.ahead)
            return
        if min(wait_s, training_s) >= _WORTHWHILE * (wait_s + training_s):
            self.ahead = min(MOST_AHEAD if wait_s > training_s else 1, self._most)
            self._lock_step_s = wait_s + training_s
            self._waits, self._trainings, self._mark = [], [], None
            return
        self._decided = True
        logger.info("a rollout takes %.3f s, training on it %.3f s: none is collected ahead", wait_s, training_s)
