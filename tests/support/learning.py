"""Whether an algorithm learns: three agents with seeds of their own train as one cohort until each
reaches a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.collect import Collector
from podracer_core.environments import VecEnvironment
from podracer_core.evaluate import EvaluationResult, GreedyEvaluator
from podracer_core.random_numbers import evaluation_seeds

SEEDS = (11, 22, 33)
EPISODES = 32


@dataclass(frozen=True)
class Best:
    """The best evaluated snapshot of one agent: greedy mean, the lower end of its 95 % interval,
    and after how many of its environment steps the target was reached first (None: never)."""

    mean: float
    lower_bound: float
    reached_at: int | None

    def after(
        self, result: EvaluationResult, target: float, env_steps: int, *, confident: bool
    ) -> Best:
        """This one, or what a new look has found."""
        reached = (result.lower_bound if confident else result.mean) >= target
        reached_at = env_steps if self.reached_at is None and reached else self.reached_at
        mean, lower_bound = max((self.mean, self.lower_bound), (result.mean, result.lower_bound))
        return Best(mean, lower_bound, reached_at)


def best_bounds(
    algorithm_name: str,
    make_environment: Callable[[int], VecEnvironment],
    envs: int,
    shared: Mapping[str, Any],
    target: float,
    env_steps: int,
    every: int,
    *,
    confident: bool = False,
) -> list[Best]:
    """Train in `envs` environments a member until all agents have reached `target`, or taken
    `env_steps` each.

    Looks at the greedy policies every `every` environment steps of a member, on episodes that are
    not trained on. The mean of 32 has to reach the target, or where `confident` the lower end of
    its interval."""
    environment = make_environment(len(SEEDS) * envs)
    evaluator = GreedyEvaluator(make_environment)
    cohort = CohortConfig(
        algorithm_name, tuple(MemberConfig(str(seed), seed) for seed in SEEDS), shared
    )
    algorithm = algorithm_class(algorithm_name)(
        cohort, environment.observation_space, environment.action_space
    )
    collector = Collector(environment, algorithm.actor, torch.tensor(SEEDS))
    best = [Best(-torch.inf, -torch.inf, None)] * len(SEEDS)
    taken = looks = 0
    try:
        while taken < env_steps and any(agent.reached_at is None for agent in best):
            algorithm.update(collector.collect(algorithm.horizon, policy_version=algorithm.version))
            taken += algorithm.horizon * envs
            if taken >= (looks + 1) * every:
                looks = taken // every
                results = evaluator.evaluate(algorithm.actor, evaluation_seeds(looks, 0, EPISODES))
                best = [
                    agent.after(result, target, taken, confident=confident)
                    for agent, result in zip(best, results, strict=True)
                ]
    finally:
        environment.close()
        evaluator.close()
    return best
