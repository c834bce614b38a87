"""The interface of all algorithms, and the class of an algorithm's name."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.cohort import CohortConfig
from podracer_core.algorithms.sharing import Sharing
from podracer_core.buffers import Rollout
from podracer_core.catalogue import AlgorithmInfo, find_algorithm
from podracer_core.errors import InvalidInput
from podracer_core.networks import Actor, NetworkActor
from podracer_core.random_numbers import normal, perturbation_key

# group (actor, critic, optimizer, normalizer, algorithm, random) -> name -> tensor without a member
# axis
MemberState = dict[str, dict[str, Tensor]]


def _unobserved(part: str) -> AbstractContextManager[object]:
    return nullcontext()


class Algorithm(ABC):
    """M agents that train at once. Built as `cls(cohort, observation_space, action_space, device)`.

    actor       acts with the present weights; in a fused learner the collector uses it directly
    active      bool [M], false for a member that diverged: it stays frozen at its last sound state
    version     number of updates: the policy version of rollouts
    horizon     steps that every environment should take before an update
    max_lag     the oldest rollout, in versions, that `update` can still use
    observe     called with the name of each part of an update; returns a context manager around
                that part. By default it observes nothing
    halted      asked after each gradient step: whether the update ends with the steps that it has
                taken, as time is up. An update that is one CUDA graph does not ask
    """

    on_policy: ClassVar[bool]
    graph_safe: ClassVar[bool] = False
    """Whether updates may be replayed as CUDA graphs: see `cuda_graphs.Graphed`. Not inherited."""

    max_lag: ClassVar[int]

    cohort: CohortConfig
    actor: Actor
    active: Tensor
    version: int
    horizon: int
    device: torch.device
    observe: Callable[[str], AbstractContextManager[object]] = staticmethod(_unobserved)
    halted: Callable[[], bool] = staticmethod(lambda: False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.graph_safe = vars(cls).get("graph_safe", False)

    @abstractmethod
    def __init__(
        self,
        cohort: CohortConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str = "cpu",
    ) -> None:
        """Fresh members: each one's initial weights depend on its seed only."""

    @classmethod
    @abstractmethod
    def make_actor(
        cls,
        cohort: CohortConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str = "cpu",
    ) -> Actor:
        """An actor without the rest, for a worker or an evaluator; its weights are zero until it
        loads a state."""

    @abstractmethod
    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Learn from a rollout; returns metrics, [M] each. Does not synchronize with the device."""

    @abstractmethod
    def member_state(self, member: int) -> MemberState:
        """A copy of one member's complete state, except its environments."""

    @abstractmethod
    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Overwrite one member. Missing groups stay unchanged: leave out `random` to let a child
        keep its own stream of random numbers. Hyperparameters come from the config, never from the
        state."""

    @abstractmethod
    def set_hyperparameters(self, member: int, values: Mapping[str, float]) -> None:
        """Change some of one member's hyperparameters. Raises InvalidInput for unknown ones or bad
        values."""

    @abstractmethod
    def perturb_member(self, member: int, scale: float, seed: int) -> None:
        """Add noise to one member's actor: each layer's weights get `scale` times their own
        standard deviation."""

    def replay_state(self, member: int) -> dict[str, Tensor]:
        """A copy of one member's transitions; empty if the algorithm keeps none."""
        return {}

    def load_replay_states(self, states: Sequence[Mapping[str, Tensor] | None]) -> None:
        """Load one `replay_state` per member (None: none), before the first update."""
        return

    def share(self, rank: int) -> Sharing:
        """Train these members together with other learners from now on, with this rank.

        Rank 0 continues as it would alone; others draw other random numbers in updates. Call it
        once. Raises InvalidInput for an algorithm without fusion."""
        raise InvalidInput(
            f"{self.cohort.algorithm} cannot be trained by several learners", reason="NO_FUSION"
        )

    @property
    def epochs(self) -> int:
        """The number of trained epochs; each ends with a fusion. By default one per update."""
        return self.version

    @property
    def replay_size(self) -> int:
        """Stored transitions of all members. Synchronizes with the device."""
        return 0

    @property
    def members(self) -> int:
        """M."""
        return len(self.cohort.members)

    def actor_state(self) -> dict[str, Tensor]:
        """The weights that a worker needs to act as these members do now: [M, …] each, normalizers
        included."""
        return self.actor.state()


@torch.no_grad()
def perturb_actor(actor: NetworkActor, member: int, scale: float, seed: int) -> None:
    """Add noise to the dense layers of one member's networks, in place.

    Each layer's weights get `scale` times their own standard deviation; biases and convolutions
    stay. Of an ensemble all N networks of the member change, each by noise of its own. The noise
    follows from `seed` alone."""
    key = perturbation_key(seed).to(actor.device)
    start = 0
    for stacked in actor.network.weights:
        ensemble = stacked.shape[0] // actor.members
        weight = stacked[member * ensemble : (member + 1) * ensemble]  # [N, in, out]
        noise = normal(
            key, torch.arange(start, start + weight.numel(), device=actor.device)
        ).view_as(weight)
        weight += scale * weight.std((1, 2), keepdim=True) * noise
        start += weight.numel()


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of the algorithm `name`, built in or installed.

    Raises InvalidInput, with the nearest names, if there is none, or if an installed package's
    class cannot be loaded."""
    info = find_algorithm(name)
    try:
        found = pkgutil.resolve_name(info.implementation)
    except Exception as error:
        if not info.package:
            raise
        raise _broken(info, f"cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise _broken(info, f"is no {Algorithm.__module__}.{Algorithm.__name__}")
    return found


def _broken(info: AlgorithmInfo, problem: str) -> InvalidInput:
    message = f"algorithm {info.name!r} of package {info.package}: {info.implementation} {problem}"
    return InvalidInput(message, field="algorithm", reason="BROKEN_ALGORITHM", algorithm=info.name)
