"""When a look at training is worth its time."""

from __future__ import annotations

__all__ = ["EvaluationSchedule"]

_CREDIT_S = 5.0


class EvaluationSchedule:
    """Keeps evaluation to `fraction` of the time, and spends it where it matters.

    A round starts with a credit, which is used for the first look and wherever the target seems near: a lucky policy
    comes and goes within a few updates. Over a round whose length is known the fraction holds in the end.
    """

    def __init__(self, fraction: float, round_s: float | None = None) -> None:
        self._fraction, self._round_s = fraction, round_s
        self._last_cost_s: float | None = None
        self._last_end_s = 0.0
        self.spent_s = 0.0

    def is_due(self, elapsed_s: float, first_cost_s: float, *, promising: bool) -> bool:
        """Whether to look now. `first_cost_s` estimates the cost of a first look, before there has been one."""
        cost_s = first_cost_s if self._last_cost_s is None else self._last_cost_s
        if self._last_cost_s is None or promising:
            # Near the target as much time again goes to training as to looking.
            return elapsed_s - self._last_end_s >= cost_s * promising and self.allows(elapsed_s, cost_s, credit=True)
        return self.allows(elapsed_s, cost_s)

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
