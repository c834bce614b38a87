"""How long a round is: the job's wish, stretched for agents that improve. The orchestrator cuts it to the budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from podracer_leaderboard.rules import Rules

MAX_STRETCH = 4.0
"""How many times its usual length a round of improving agents may be: a look at them is never far away."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a job may still reserve for all of its agents together; infinite without a limit."""

    env_steps: float = math.inf
    cost_s: float = math.inf

    @property
    def is_nothing(self) -> bool:
        return self.env_steps < 1 or self.cost_s <= 0

    def places(self, wanted: int) -> int:
        """How many members a round may have so that each gets at least one step."""
        return int(min(wanted, self.env_steps))


@dataclass(frozen=True, slots=True)
class RoundBudget:
    """The limits of one round: steps of each member (0: none) and seconds of the pod (0: none)."""

    env_steps: int
    time_s: float


def round_budget(rules: Rules, stretch: float = 1.0) -> RoundBudget:
    """The round of a cohort."""
    return RoundBudget(math.floor(rules.round_env_steps * stretch), rules.round_time_s * stretch)


def cohort_stretch(curves: Iterable[Sequence[float]]) -> float:
    """How many times the usual length the round of a cohort may be: the mean of what its members deserve.

    `curves` are each member's last scores, oldest first; empty for one that was never judged.
    """
    deserved = [agent_stretch(curve) for curve in curves]
    return math.fsum(deserved) / len(deserved) if deserved else 1.0


def agent_stretch(curve: Sequence[float]) -> float:
    """1 for an agent whose last score is no record of its curve; doubled for each record in a row, up to 4.

    Records need no scale and no estimate of the noise: a curve that only fluctuates has one in n looks.
    """
    is_record = [score > best for score, best in zip(curve[1:], accumulate(curve, max), strict=False)]
    in_a_row = next((count for count, record in enumerate(reversed(is_record)) if not record), len(is_record))
    return min(MAX_STRETCH, 2.0**in_a_row)
