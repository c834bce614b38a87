"""How long a round may be: the job's wish, cut to what the job has left."""

from __future__ import annotations

import math
from dataclasses import dataclass

from podracer_leaderboard.rules import Rules


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


def round_budget(rules: Rules, members: int, remaining: Remaining) -> RoundBudget:
    """A round of `members`. The members' costs add up to the pod's seconds, so the pod may take all that is left."""
    steps = min(rules.round_env_steps or math.inf, remaining.env_steps // members)
    time_s = min(rules.round_time_s or math.inf, remaining.cost_s)
    return RoundBudget(0 if math.isinf(steps) else int(steps), 0.0 if math.isinf(time_s) else time_s)
