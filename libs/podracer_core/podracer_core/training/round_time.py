"""The time of a round, divided between rollouts, updates and the last evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable

_HURRY_S = 1.5  # for the evaluations of a round that is told to end
_FIRST_UPDATE_PART, _MOST_UPDATE_PART = 0.1, 0.5  # of the time for training that is kept free for the next update


class RoundTime:
    """Says when a rollout, an update and an evaluation have to end. It is asked at every step, so it is cheap."""

    def __init__(self, duration_s: float | None, elapsed_s: Callable[[], float], is_told: Callable[[], bool]) -> None:
        """`duration_s` None: no limit. `elapsed_s`: since the round began; `is_told`: whether it is told to end."""
        self._duration_s = math.inf if duration_s is None else duration_s
        self._elapsed_s, self._is_told_now = elapsed_s, is_told
        self._update_s = (duration_s or 0.0) * _FIRST_UPDATE_PART
        self._trains_until_s = self._collects_until_s = self._told_at_s = math.inf
        self._asked_at_s = 0.0

    def divide(self, closing_s: float) -> None:
        """Before a rollout: keep `closing_s` seconds for the last evaluations, and the last update's for the next."""
        self._asked_at_s = self._elapsed_s()
        self._trains_until_s = self._duration_s - closing_s
        left_s = max(0.0, self._trains_until_s - self._asked_at_s)
        self._collects_until_s = self._trains_until_s - min(self._update_s, _MOST_UPDATE_PART * left_s)

    def note_update(self, seconds: float) -> None:
        """Note how long an update has taken."""
        self._update_s = seconds

    def is_up(self) -> bool:
        """Whether training has to end."""
        return self.is_told() or self._elapsed_s() >= self._trains_until_s

    def has_collected(self) -> bool:
        """Asked before every step but the first: whether a rollout has to end. A step takes as long as the last one."""
        now_s = self._elapsed_s()
        step_s, self._asked_at_s = now_s - self._asked_at_s, now_s
        return self.is_told() or now_s + step_s >= self._collects_until_s

    def is_told(self) -> bool:
        """Whether the round is told to end."""
        if not self._is_told_now():
            return False
        self._told_at_s = min(self._told_at_s, self._elapsed_s())
        return True

    def ends_at_s(self) -> float:
        """When the last evaluations have to end; infinite without a limit."""
        return min(self._duration_s, self._told_at_s + _HURRY_S) if self.is_told() else self._duration_s

    def evaluation_left_s(self, *, is_last: bool) -> float:
        """Seconds that are left for an evaluation: one during training leaves the last ones their part."""
        ends_at_s = self.ends_at_s() if is_last or self.is_told() else self._trains_until_s
        return ends_at_s - self._elapsed_s()
