"""When a look at training is worth its time."""

from __future__ import annotations

__all__ = ["EvaluationSchedule"]

_CREDIT_S = 5.0
_LOOKS_AT_THE_END = 2  # what a round ends with costs about as much: a last look, and each member's best in full


class EvaluationSchedule:
    """Keeps evaluation to `fraction` of the time, and spends it where it matters.

    A round begins with a credit, used for the first look and, where a target is hunted, for more of them: a lucky
    policy comes and goes within a few updates. Over a round whose length is known the fraction holds in the end: what
    its end will cost is kept for it.
    The fraction holds too where training goes on meanwhile (not `blocking`): who evaluates takes a core from somebody.
    """

    def __init__(self, fraction: float, round_s: float | None = None, *, hunting: bool, blocking: bool = True) -> None:
        self._fraction = fraction
        self._round_s, self._hunting, self._blocking = round_s, hunting, blocking
        self._last_cost_s: float | None = None
        self._last_end_s = 0.0
        self.spent_s = 0.0

    def is_due(self, elapsed_s: float, first_cost_s: float, *, promising: bool) -> bool:
        """Whether to look now. `first_cost_s` estimates the cost of a first look, before there has been one;
        `promising`: the last look was not far from the target."""
        if self._last_cost_s is None:
            return self._leaves_the_end(elapsed_s, first_cost_s)
        if not self._hunting:
            return self._leaves_the_end(elapsed_s, self._last_cost_s, credit=False)
        pause_s = self._last_cost_s * (0 if not self._blocking else 1 if promising else 2)
        rested = elapsed_s - self._last_end_s >= pause_s
        return rested and self._leaves_the_end(elapsed_s, self._last_cost_s)

    def allows(self, elapsed_s: float, cost_s: float, *, credit: bool = False) -> bool:
        """Whether `cost_s` seconds more stay within the fraction."""
        return cost_s <= self.left_s(elapsed_s, credit=credit)

    def left_s(self, elapsed_s: float, *, credit: bool = True) -> float:
        """Seconds of the fraction that are left; less than 0 where more was spent."""
        base_s = elapsed_s + (_CREDIT_S if credit else 0.0)
        if credit and self._round_s is not None:
            base_s = max(elapsed_s, min(base_s, self._round_s))
        return self._fraction * base_s - self.spent_s

    def _leaves_the_end(self, elapsed_s: float, cost_s: float, *, credit: bool = True) -> bool:
        """Whether a look of `cost_s` seconds stays within the fraction and leaves what the end of the round costs."""
        end_s = _LOOKS_AT_THE_END * cost_s if self._round_s is not None else 0.0
        return self.allows(elapsed_s, cost_s + end_s, credit=credit)

    def record(self, elapsed_s: float, cost_s: float, *, screening: bool) -> None:
        """An evaluation of `cost_s` seconds has just ended."""
        self.spent_s += cost_s
        if screening:
            self._last_cost_s, self._last_end_s = cost_s, elapsed_s
