"""The looks of benchmarks/returns.py: greedy episodes every so many steps, the same ones for every
agent of a task."""

from __future__ import annotations

import functools
import time

import numpy as np
import torch
from lab.events import tell
from peers.ppo_watch import Policy
from peers.returns_training import EPISODES, ReturnsOrder
from torch import Tensor

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import make_vec_environment
from podracer_core.evaluate import Evaluated, GreedyEvaluator
from podracer_core.random_numbers import COMPARISON, evaluation_seeds


class PeerActor:
    """A peer's greedy policy as the evaluator takes one: a single member."""

    members = 1

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def repeat(self, times: int) -> PeerActor:
        """It acts on all rows alike, however many members they are said to be."""
        return self

    def greedy(self, observation: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """observation [M, B, obs] raw -> [M, B, action]."""
        action = np.asarray(self._policy(observation.flatten(0, 1).numpy()), dtype=np.float32)
        return torch.from_numpy(action).view(*observation.shape[:2], -1)


class Looks:
    """To be asked before every rollout; training is taken to begin when it is made.

    A look is taken once as many steps are done as the next one is due at, and at the end of
    training. It tells `look` with the steps of each agent, their mean returns, and the seconds of
    training so far."""

    def __init__(self, order: ReturnsOrder, actor: Evaluated) -> None:
        self._order, self._actor, self._due = order, actor, order.every
        self._evaluator = GreedyEvaluator(
            functools.partial(make_vec_environment, EnvironmentSpec(id=order.environment))
        )
        self._looked_s, self._began_at = 0.0, time.perf_counter()

    def is_over(self, env_steps: int) -> bool:
        """env_steps: of each agent, so far."""
        is_last = env_steps >= self._order.steps
        if is_last or env_steps >= self._due:
            self._due = (env_steps // self._order.every + 1) * self._order.every
            self._look(env_steps)
        if is_last:
            tell("over")
        return is_last

    def _look(self, env_steps: int) -> None:
        start = time.perf_counter()
        # Other episodes at each look, which a look at any other agent of the task has as well.
        seeds = evaluation_seeds(env_steps, COMPARISON, EPISODES)
        results = self._evaluator.evaluate(self._actor, seeds, block_rows=EPISODES)
        self._looked_s += time.perf_counter() - start
        training_s = time.perf_counter() - self._began_at - self._looked_s
        means = [round(result.mean, 2) for result in results]
        tell("look", env_steps=env_steps, returns=means, training_seconds=round(training_s, 1))
