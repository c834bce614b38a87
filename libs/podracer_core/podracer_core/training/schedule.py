"""When a look at training is worth its time."""

from __future__ import annotations

__all__ = ["EvaluationSchedule"]

_CREDIT_S = 5.0


class EvaluationSchedule:
    """Keeps evaluation to `fraction` of the time, and spends it where it matters.

    A round begins with a credit, used for the first look and, where a target is hunted, for more of them: a lucky
    policy comes and goes within a few updates. Over a round whose length is known the fraction holds in the end.
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
            return self.allows(elapsed_s, first_cost_s, credit=True)
        if not self._hunting:
            return self.allows(elapsed_s, self._last_cost_s)
        pause_s = self._last_cost_s * (0 if not self._blocking else 1 if promising else 2)
        rested = elapsed_s - self._last_end_s >= pause_s
        return rested and self.allows(elapsed_s, self._last_cost_s, credit=True)

    def allows(self, elapsed_s: float, cost_s: float, *, credit: bool = False) -> bool:
        """Whether `cost_s` seconds more stay within the fraction."""
        base_s = elapsed_s + (_CREDIT_S if credit else 0.0)
        if credit and self._round_s is not None:
            base_s = max(elapsed_s, min(base_s, self._round_s))
        return self.spent_s + cost_s <= self._fraction * base_s

    def record(self, elapsed_s: float, cost_s: float, *, screening: bool) -> None:
        """An evaluation of `cost_s` seconds has just ended."""
        self.spent_s += cost_s
        if screening:
            self._last_cost_s, self._last_end_s = cost_s, elapsed_s
