"""Agents of ours that train in this process, without services."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment
from podracer_core.training import InProcessSource, RoundPlan, TrainingSession


class Agents:
    """One agent for each seed, trained as the members of a cohort, each with `num_envs`
    environments of its own.

    make        of the algorithm, where it is not the catalogue's
    collecting  arguments of the collector
    """

    def __init__(
        self,
        name: str,
        environment: EnvironmentSpec,
        seeds: Sequence[int],
        num_envs: int,
        hyperparameters: Mapping[str, Any],
        *,
        make: Callable[..., Any] | None = None,
        processes: int | None = None,
        **collecting: Any,
    ) -> None:
        members = tuple(MemberConfig(f"agent-{seed}", seed) for seed in seeds)
        cohort = CohortConfig(name, members, dict(hyperparameters))
        options: dict[str, Any] = {} if processes is None else {"processes": processes}
        self.environment = make_vec_environment(environment, len(members) * num_envs, **options)
        spaces = self.environment.observation_space, self.environment.action_space
        self.algorithm: Any = (make or algorithm_class(name))(cohort, *spaces)
        self.collector = Collector(
            self.environment, self.algorithm.actor, torch.tensor(list(seeds)), **collecting
        )

    @property
    def steps(self) -> int:
        """Environment steps of all agents together in a rollout."""
        return int(self.algorithm.horizon * self.environment.num_envs)

    def collect(self) -> Any:
        """A rollout."""
        return self.collector.collect(self.algorithm.horizon, policy_version=self.algorithm.version)

    def train(self) -> None:
        """A rollout, and an update."""
        self.algorithm.update(self.collect())

    def pace(self, seconds: float) -> float:
        """Environment steps/s of all agents together, over so many seconds."""
        rollouts, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            self.train()
            rollouts += 1
        return rollouts * self.steps / elapsed

    def session_until(self, is_over: Callable[[int], bool]) -> None:
        """Train in the session that a fused pod's learner runs. `is_over` is asked before every
        rollout, with the steps of an agent."""
        source = InProcessSource(self.collector, self.algorithm)
        session = TrainingSession(self.algorithm, source, None, RoundPlan(duration_s=3600.0))
        while not is_over(session.moment().env_steps[0]):
            session.step()
        source.close()
