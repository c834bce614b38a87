"""Collection for one learner: environments, an actor, a collector. Without gRPC."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.algorithms import CohortConfig, algorithm_class
from podracer_core.buffers import Rollout
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import VecEnvironment, make_vec_environment
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.training import (
    EnvironmentState,
    WorldBreak,
    first_breaks,
    member_environment_states,
    resume_environments,
    stack_states,
    unstack_states,
)

STEP_COUNT = "step_count"

_MAX_ENVIRONMENTS = 1 << 20  # of all members
_MAX_HORIZON = 1 << 20
_MAX_STEP_COUNT = 1 << 62


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The options of a learner's session.

    state   "step_count" [M]: steps that each agent has taken; with the environments' states
            (`stack_states`) they continue from there
    rollout_s  seconds after which a rollout ends; the rest of its rows are not valid
    """

    cohort: CohortConfig
    environment: EnvironmentSpec
    envs_per_member: int
    first_env_index: int
    horizon: int
    device: str
    state: Mapping[str, Tensor]
    rollout_s: float = math.inf

    def __post_init__(self) -> None:
        most = _MAX_ENVIRONMENTS // len(self.cohort.members)
        limits = {
            "envs_per_member": (1, most),
            "horizon": (1, _MAX_HORIZON),
            "first_env_index": (0, (1 << 31) - 1),
        }
        violations = [
            FieldViolation(name, f"expected {low} to {high}, got {getattr(self, name)}")
            for name, (low, high) in limits.items()
            if not low <= getattr(self, name) <= high
        ]
        if violations:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)


class Collection:
    """Collects with the newest weights that it has received, in one thread."""

    def __init__(self, plan: CollectionPlan, check: Callable[[], None] = lambda: None) -> None:
        """Starts the environments. `check` raises to cancel a rollout. Raises UserCodeFailed if
        they do not start, InvalidInput if memory is too small or the state is of another cohort."""
        self._plan, self._check = plan, check
        members = len(plan.cohort.members)
        self.environment: VecEnvironment = make_vec_environment(
            plan.environment, members * plan.envs_per_member, plan.device
        )
        try:
            self._actor = algorithm_class(plan.cohort.algorithm).make_actor(
                plan.cohort,
                self.environment.observation_space,
                self.environment.action_space,
                plan.device,
            )
            self._collector = self._make_collector()
        except Exception:
            self.environment.close()
            raise

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Use these weights from the next rollout on. Raises InvalidInput if they are of another
        cohort."""
        self._actor.load_state(tensors)

    def collect(self, policy_version: int) -> Rollout:
        """The next rollout; the following one overwrites it."""
        ends_at = time.monotonic() + self._plan.rollout_s
        self._collector.halted = lambda: time.monotonic() >= ends_at
        return self._collector.collect(
            self._plan.horizon, policy_version=policy_version, padded=True
        )

    @property
    def rollout_size_bytes(self) -> int:
        """The largest size of a rollout."""
        return self._collector.rollout_size_bytes(self._plan.horizon)

    def take_breaks(self) -> list[WorldBreak]:
        """See `RolloutSource.take_breaks`."""
        return first_breaks(self._collector)

    def environment_state(self) -> dict[str, Tensor]:
        """The environments' states, in the form of `CollectionPlan.state`."""
        states: list[EnvironmentState | None] = list(member_environment_states(self._collector))
        return stack_states(states, 0, self._plan.envs_per_member)

    def close(self) -> None:
        """Close the environments."""
        self.environment.close()

    def _make_collector(self) -> Collector:
        plan, state = self._plan, self._plan.state
        members = len(plan.cohort.members)
        first_step = state.get(STEP_COUNT, torch.zeros(members, dtype=torch.int64))
        if first_step.shape != (members,) or first_step.dtype != torch.int64:
            raise InvalidInput(
                f"step_count must be int64 [{members}], not {first_step.dtype} "
                f"{list(first_step.shape)}"
            )
        if not bool(((first_step >= 0) & (first_step <= _MAX_STEP_COUNT)).all()):
            raise InvalidInput(
                f"step_count must be 0 to {_MAX_STEP_COUNT}, not {first_step.tolist()}"
            )
        collector = Collector(
            self.environment,
            self._actor,
            torch.tensor([member.seed for member in plan.cohort.members]),
            first_step=first_step,
            first_environment=plan.first_env_index,
            session=first_step,
            check=self._check,
        )
        if set(state) - {STEP_COUNT}:
            resume_environments(collector, unstack_states(state))
        return collector
