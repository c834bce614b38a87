"""The plan of a round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from podracer_core.errors import InvalidInput
from podracer_core.evaluate import EvaluationResult
from podracer_core.jobs.objective import EVALUATION_FRACTION, EvaluationPlan

Statistic = Literal["mean", "lower_bound"]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The end of a round and the evaluation of its members.

    env_steps            of each member; 0: no limit. The last rollout is finished, so up to one rollout more is taken
    duration_s           seconds, evaluation included; None: no limit
    cost_s               seconds of processors (of the GPU if there is one) that the pod may use; None: no limit
    evaluation_fraction  part of the round's use that evaluation may take
    target               the statistic of a full evaluation that ends the round at once; None: none
    episodes             of a full evaluation
    screening_episodes   of the evaluations that follow training
    admission_score      a candidate is evaluated in full only while it may have this score; None: always
    seed                 the job's: evaluation seeds derive from it
    lowest_return        of the job's intact evaluation episodes; inf: unknown. Broken ones are counted with it
    """

    env_steps: int = 0
    duration_s: float | None = None
    cost_s: float | None = None
    evaluation_fraction: float = EVALUATION_FRACTION
    target: float | None = None
    statistic: Statistic = "lower_bound"
    episodes: int = EvaluationPlan.episodes
    screening_episodes: int = 8
    admission_score: float | None = None
    seed: int = 0
    lowest_return: float = math.inf

    def __post_init__(self) -> None:
        if not self.env_steps and self.duration_s is None and self.cost_s is None and self.target is None:
            raise InvalidInput("a round needs an end: env_steps, duration_s, cost_s or target")
        if not 0.0 < self.evaluation_fraction <= 1.0 or self.episodes < 1 or self.screening_episodes < 1:
            raise InvalidInput(
                "a round needs an evaluation_fraction in (0, 1] and at least one episode an evaluation, not "
                f"{self.evaluation_fraction}, {self.episodes} and {self.screening_episodes}"
            )

    def part(self, elapsed_s: float, env_steps: int, used_s: float) -> float:
        """The elapsed part of the round, 1 at its end; 0 if its length is unknown."""
        return max(
            elapsed_s / self.duration_s if self.duration_s else 0.0,
            env_steps / self.env_steps if self.env_steps else 0.0,
            used_s / self.cost_s if self.cost_s else 0.0,
        )

    def score(self, result: EvaluationResult) -> float:
        """The number of an evaluation that is compared with the target."""
        return result.mean if self.statistic == "mean" else result.lower_bound

    def is_reached_by(self, result: EvaluationResult) -> bool:
        """Whether a full evaluation reaches the target."""
        return self.target is not None and result.episodes >= self.episodes and self.score(result) >= self.target
