"""How many agents of one shape a pod best trains at once, from what rounds have measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TRIED_ROUNDS = 2.0
"""Rounds of a size that say enough of it: the first may have built and warmed up what the next ones use."""

PATIENCE_ROUNDS = 4.0
"""Rounds of a size before half of it is tried, which may waste up to half of two rounds."""

PAYS = 1.1
"""What twice the size has to gain for a still larger one to be tried."""

CLEARLY = 1.05
"""What a smaller size has to gain to be preferred: agents that go on together stay in the memory of their pod."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """What rounds of one shape and size did: steps and device seconds of all members together."""

    env_steps: float
    cost_s: float
    rounds: float

    @property
    def env_steps_per_s(self) -> float:
        """Environment steps of the whole cohort for each device second."""
        return self.env_steps / self.cost_s

    def with_member(self, env_steps: int, cost_s: float, member_count: int) -> Throughput:
        """After one member more has reported its round; older rounds count ever less, the last eight or so matter.

        A member's cost is already its share of the pod's time, so members' costs add up to device seconds.
        """
        kept = 1.0 - 1.0 / (8.0 * member_count)
        return Throughput(
            self.env_steps * kept + env_steps, self.cost_s * kept + cost_s, self.rounds + 1.0 / member_count
        )


def member_limit(measured: Mapping[int, Throughput], most: int) -> int:
    """How many members a cohort may have, of at most `most`; `measured` is by cohort size.

    `most` until something is known; then the size with the best throughput of the whole cohort. Twice that is tried
    while the last doubling has paid, half of it once where nothing smaller has been.
    """
    tried = {
        size: measured[size].env_steps_per_s
        for size in sorted(measured)
        if size <= most and measured[size].rounds >= TRIED_ROUNDS and measured[size].cost_s > 0.0
    }
    if not tried:
        return most
    best = max(tried)
    for size in sorted(tried, reverse=True):
        if tried[size] > CLEARLY * tried[best]:
            best = size
    if best == max(tried) < most and _has_paid(tried, best):
        return min(2 * best, most)
    if best == min(tried) and measured[best].rounds >= PATIENCE_ROUNDS:
        return max(1, best // 2)
    return best


def _has_paid(tried: Mapping[int, float], size: int) -> bool:
    """Whether `size` is that much better than half of it; nothing known speaks for trying."""
    smaller = [each for each in tried if 2 * each <= size]
    return not smaller or tried[size] >= PAYS * tried[max(smaller)]
