"""When a look at training is worth its time."""

from __future__ import annotations

__all__ = ["CREDIT_S", "EvaluationSchedule"]

CREDIT_S = 5.0
_LOOKS_AT_THE_END = 2  # what a round ends with costs about as much: a last look, and each member's best in full


class EvaluationSchedule:
    """Keeps evaluation to `fraction` of what a round uses, and spends it where it matters.

    What is used is in seconds of processors, evaluation included, or in seconds of the GPU where there is one.
    `round_s` is what the whole round will use, as far as anybody knows.

    A round begins with a credit, used for the first look and, where a target is hunted, for more of them: a lucky
    policy comes and goes within a few updates. Over a round whose length is known the fraction holds in the end: what
    its end will cost is kept for it.
    The fraction holds too where training goes on meanwhile (not `blocking`): who evaluates takes a core from somebody.
    """

    def __init__(self, fraction: float, round_s: float | None = None, *, hunting: bool, blocking: bool = True) -> None:
        self._fraction = fraction
        self.round_s, self._hunting, self._blocking = round_s, hunting, blocking
        self._has_looked = False
        self._last_end_s = 0.0
        self.spent_s = 0.0

    def is_due(self, used_s: float, cost_s: float, *, promising: bool, whole: float = 1.0) -> bool:
        """Whether to look now, which costs `cost_s`. `promising`: the last look was not far from the target; `whole`:
        how many times that a look with all of its episodes costs."""
        if not self._has_looked or not self._hunting:
            return self._leaves_the_end(used_s, cost_s, whole, credit=not self._has_looked)
        pause_s = cost_s * (0 if not self._blocking else 1 if promising else 2)
        rested = used_s - self._last_end_s >= pause_s
        return rested and self._leaves_the_end(used_s, cost_s, whole)

    def allows(self, used_s: float, cost_s: float, *, credit: bool = False) -> bool:
        """Whether `cost_s` seconds more stay within the fraction."""
        return cost_s <= self.left_s(used_s, credit=credit)

    def left_s(self, used_s: float, *, credit: bool = True) -> float:
        """Seconds of the fraction that are left; less than 0 where more was spent."""
        base_s = used_s + (CREDIT_S if credit else 0.0)
        if credit and self.round_s is not None:
            base_s = max(used_s, min(base_s, self.round_s))
        return self._fraction * base_s - self.spent_s

    @property
    def end_left_s(self) -> float | None:
        """Seconds that are left for the end of a round of known length; less than 0 where more was spent."""
        return None if self.round_s is None else self._fraction * self.round_s - self.spent_s

    def _leaves_the_end(self, used_s: float, cost_s: float, whole: float, *, credit: bool = True) -> bool:
        """Whether a look of `cost_s` seconds stays within the fraction and leaves what the end of the round costs, or
        half of the fraction where that costs more."""
        end_s = 0.0
        if self.round_s is not None:
            end_s = _LOOKS_AT_THE_END * whole * cost_s
            end_s = end_s if whole == 1.0 else min(end_s, 0.5 * self._fraction * self.round_s)
        return self.allows(used_s, cost_s + end_s, credit=credit)

    def record(self, used_s: float, cost_s: float, *, screening: bool) -> None:
        """An evaluation of `cost_s` seconds has just ended."""
        self.spent_s += cost_s
        if screening:
            self._has_looked, self._last_end_s = True, used_s
