"""How the agents of one leaderboard compete: the job's wishes with every default filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rules:
    """Frozen at the leaderboard's creation; see `podracer.common.v1.Evolution` for what each means.

    round_env_steps   0: the round is limited by time
    round_time_s      0: the round is limited by steps
    generations       0: until the budget ends
    """

    seed: int = 0
    population: int = 8
    leaderboard_size: int = 4
    round_env_steps: int = 0
    round_time_s: float = 15.0
    tournament_size: int = 2
    replaced_fraction: float = 0.25
    exploration: float = 0.1
    lineage_limit: int = 2
    selection: Literal["tournament", "truncation"] = "tournament"
    crossover: float = 0.0
    noise_scale: float = 0.0
    generations: int = 0
    adaptive_rounds: bool = False
    generator: str = "tournament"
    updater: str = "lower_bound"

    def effort(self, env_steps: int, cost_s: float) -> float:
        """What lines are compared by: environment steps where rounds are in steps, else device seconds / M."""
        return float(env_steps) if self.round_env_steps else cost_s

    @property
    def shape_limit(self) -> int:
        """How many shapes of one algorithm may be alive: more would leave too few agents in a cohort to be worth it."""
        return max(2, self.population // 4)
