"""What a worker does for one learner: environments, an actor, a collector. No gRPC; the wire's values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.algorithms.cohort import CohortConfig
from podracer_core.algorithms.registry import algorithm_class
from podracer_core.buffers.rollout import Rollout
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments.registry import make_vec_environment
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import InvalidInput, PodracerError
from podracer_core.training.environment_states import (
    EnvironmentState,
    member_environment_states,
    resume_environments,
    stack_states,
    unstack_states,
)

__all__ = ["Collection", "CollectionPlan"]

STEP_COUNT = "step_count"


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """What a learner has asked for when it opened its session.

    state   "step_count" [M]: steps that each agent has taken; with the environments' states (`stack_states`) they go
            on from there
    """

    cohort: CohortConfig
    environment: EnvironmentSpec
    envs_per_member: int
    first_env_index: int
    horizon: int
    device: str
    state: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if self.envs_per_member < 1 or self.horizon < 1 or self.first_env_index < 0:
            raise InvalidInput(
                "a session needs envs_per_member and horizon of 1 or more and first_env_index of 0 or more, not "
                f"{self.envs_per_member}, {self.horizon} and {self.first_env_index}"
            )


class Collection:
    """Collects with the newest weights that it has been given. All of it in one thread."""

    def __init__(self, plan: CollectionPlan) -> None:
        """Starts the environments. Raises UserCodeFailed where they do not."""
        self._plan = plan
        members = len(plan.cohort.members)
        self.environment: VecEnvironment = make_vec_environment(
            plan.environment, members * plan.envs_per_member, plan.device
        )
        try:
            self._actor = algorithm_class(plan.cohort.algorithm).make_actor(
                plan.cohort, self.environment.observation_space, self.environment.action_space, plan.device
            )
            self._collector = self._make_collector()
        except PodracerError:
            self.environment.close()
            raise

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Act with these from the next rollout on. Raises InvalidInput where they are of another cohort."""
        self._actor.load_state(tensors)

    def collect(self, policy_version: int) -> Rollout:
        """The next rollout; the one after overwrites it."""
        return self._collector.collect(self._plan.horizon, policy_version=policy_version)

    @property
    def rollout_size_bytes(self) -> int:
        """Of a rollout, at most."""
        return self._collector.rollout_size_bytes(self._plan.horizon)

    def environment_state(self) -> dict[str, Tensor]:
        """Where the environments stand, as `CollectionPlan.state` takes it."""
        states: list[EnvironmentState | None] = list(member_environment_states(self._collector))
        return stack_states(states, 0, self._plan.envs_per_member)

    def close(self) -> None:
        """End the environments."""
        self.environment.close()

    def _make_collector(self) -> Collector:
        plan, state = self._plan, self._plan.state
        members = len(plan.cohort.members)
        first_step = state.get(STEP_COUNT, torch.zeros(members, dtype=torch.int64))
        if first_step.shape != (members,) or first_step.dtype != torch.int64:
            raise InvalidInput(f"step_count must be int64 [{members}], not {first_step.dtype} {list(first_step.shape)}")
        collector = Collector(
            self.environment,
            self._actor,
            torch.tensor([member.seed for member in plan.cohort.members]),
            first_step=first_step,
            first_environment=plan.first_env_index,
            session=first_step,
        )
        if len(state) > 1:
            resume_environments(collector, unstack_states(state))
        return collector
