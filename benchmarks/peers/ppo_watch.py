"""Follows a training of PPO: takes its speed, or looks now and then whether the greedy policy has
reached the targets.

All systems but ours, whose job looks by itself, are looked at in this way. It runs in the peers'
processes, on our batched environments, which are faster than the peers' own; `podracer_core` has to
be found there."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from lab.events import Speedometer, tell
from peers.ppo_recipes import TASKS, Order

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import make_vec_environment

SCREENING, CONFIRMATION = 8, 100
LOOKING_FRACTION = 0.2  # of the time, at most; as in our jobs
TELL_EVERY_S = 5.0

# raw observations float32 [N, obs] -> greedy actions [N, act] or [N]
Policy = Callable[[np.ndarray], np.ndarray]


class Watch:
    """To be asked before every rollout. Training is taken to begin when it is made."""

    def __init__(self, order: Order, policy: Policy | None) -> None:
        """policy: None where only the speed is measured."""
        self._order, self._policy = order, policy
        self._targets = list(TASKS[order.environment].targets)
        self._returns = GreedyReturns(order.environment, order.seed)
        self._rollouts = -1
        self._began_at = self._told_at = time.perf_counter()
        self._speedometer = Speedometer(order.speed_s)
        self._looked_s = self._last_look_s = 0.0
        tell("training")

    def is_over(self, env_steps: int) -> bool:
        """env_steps: taken so far. Tells `speed`, or `reached` for each target, once it knows."""
        self._rollouts += 1
        if self._order.speed_s:
            return self._speedometer.is_over(env_steps)
        now = time.perf_counter()
        if now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            tell("steps", env_steps=env_steps)
        # Untrained policies are not evaluated: Ant may reach its first target by standing still.
        if self._rollouts and self._looked_s + self._last_look_s <= LOOKING_FRACTION * (
            now - self._began_at
        ):
            self._look(env_steps)
        return not self._targets

    def _look(self, env_steps: int) -> None:
        start = time.perf_counter()
        mean = self._returns.judge(self._policy, self._targets[0])
        while self._targets and mean >= self._targets[0]:
            tell("reached", target=self._targets.pop(0), env_steps=env_steps, mean_return=mean)
        self._last_look_s = time.perf_counter() - start
        self._looked_s += self._last_look_s


class GreedyReturns:
    """Mean returns of unseen episodes."""

    def __init__(self, environment: str, seed: int) -> None:
        self._spec, self._next_seed = EnvironmentSpec(id=environment), 1_000_000 * (seed + 1)

    def judge(self, policy: Policy, target: float) -> float:
        """Of 8 episodes, or of 100 others where these 8 reach the target."""
        mean = self.fresh_mean(policy, SCREENING)
        return self.fresh_mean(policy, CONFIRMATION) if mean >= target else mean

    def fresh_mean(self, policy: Policy, episodes: int) -> float:
        """Over that many episodes, all played at once."""
        seeds = torch.arange(self._next_seed, self._next_seed + episodes)
        self._next_seed += episodes
        environment = make_vec_environment(self._spec, episodes)  # without a cost of contacts
        observation = environment.reset(seeds)
        running = torch.ones(episodes, dtype=torch.bool)
        returns = torch.zeros(episodes, dtype=torch.float64)
        while running.any():
            action = np.asarray(policy(observation.numpy()))
            is_discrete = np.issubdtype(action.dtype, np.integer)
            action = action.astype(np.int64 if is_discrete else np.float32)
            step = environment.step(torch.from_numpy(action))
            returns += torch.where(running, step.reward, 0.0)
            running &= ~(step.terminated | step.truncated)
            observation = step.observation
        environment.close()
        return float(returns.mean())
