"""The success rate: for tasks that end when they are done, and are cut off where they are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from podracer_core.environments import VecEnvironment
from podracer_core.evaluate import Evaluated, EvaluationResult, Evaluator, GreedyEvaluator


class SuccessRate(Evaluator):
    """An episode counts 1 where it ends before its time limit, else 0; the mean is the rate."""

    def __init__(
        self,
        make_environment: Callable[[int], VecEnvironment],
        *,
        all_alike: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(make_environment, all_alike=all_alike, check=check)
        self._limit = math.inf
        self._greedy = GreedyEvaluator(self._make, all_alike=all_alike, check=check)

    def evaluate(
        self, actor: Evaluated, seeds: Sequence[int], *, first_row: int = 0
    ) -> tuple[EvaluationResult, ...]:
        """See `Evaluator`."""
        return tuple(map(self._judged, self._greedy.evaluate(actor, seeds, first_row=first_row)))

    def look(self, actor: Evaluated, seeds: Sequence[int]) -> tuple[EvaluationResult, ...]:
        """See `Evaluator`."""
        return tuple(map(self._judged, self._greedy.look(actor, seeds)))

    def close(self) -> None:
        """See `Evaluator`."""
        self._greedy.close()

    def _make(self, num_envs: int) -> VecEnvironment:
        environment = self._make_environment(num_envs)
        self._limit = environment.max_episode_steps or math.inf
        return environment

    def _judged(self, result: EvaluationResult) -> EvaluationResult:
        returns = tuple(float(length < self._limit) for length in result.lengths)
        return replace(result, returns=returns, statistic=None)
