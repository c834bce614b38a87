"""How the agents of one leaderboard compete: the job's wishes with every default filled in."""

from __future__ import annotations

from dataclasses import dataclass

from podracer_core.sections.evolution import Evolution


@dataclass(frozen=True)
class Rules(Evolution):
    """Frozen at the leaderboard's creation; generations 0: until the budget ends."""

    leaderboard_size: int = 4
    lineage_limit: int = 2
    generations: int = 0
    adaptive_rounds: bool = False
    generator: str = "tournament"
    updater: str = "lower_bound"
    seed: int = 0

    @classmethod
    def of(cls, evolution: Evolution, *, seed: int, updater: str, algorithm_count: int) -> Rules:
        """`evolution` with its defaults filled in; `updater` is that of the objective's
        statistic."""
        generator, adaptive = evolution.generator or evolution.scheduler, evolution.adaptive_rounds
        halves = generator in ("tournament", "halving") and algorithm_count > 1
        filled = {
            "leaderboard_size": evolution.places,
            "lineage_limit": evolution.lineage_limit or (evolution.places + 1) // 2,
            "generations": evolution.generations or 0,
            "adaptive_rounds": generator == "asha" or (halves if adaptive is None else adaptive),
            "generator": generator,
            "updater": evolution.updater or updater,
        }
        return cls(**{**vars(evolution), **filled}, seed=seed)

    @property
    def round_env_steps(self) -> int:
        """0: the round is limited by time."""
        return self.round.env_steps or 0

    @property
    def round_time_s(self) -> float:
        """0: the round is limited by steps."""
        return self.round.seconds or 0.0

    @property
    def shape_limit(self) -> int:
        """How many shapes of one algorithm may be alive: more would leave too few agents in a
        cohort to be worth it."""
        return max(2, self.population // 4)

    def effort(self, env_steps: int, cost_s: float) -> float:
        """The effort by which lines are compared: environment steps if rounds are in steps, else
        device seconds / M."""
        return float(env_steps) if self.round_env_steps else cost_s
