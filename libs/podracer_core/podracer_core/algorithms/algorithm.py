"""The interface of all algorithms, and the class of an algorithm's name; the agents of a cohort
with their hyperparameters; what several learners of one cohort share."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.preparation import StateValues
from podracer_core.buffers import Rollout
from podracer_core.catalogue import AlgorithmInfo, find_algorithm
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.fusion import FusionState
from podracer_core.networks import Actor, NetworkActor, RunningNormalizer
from podracer_core.random_numbers import normal, perturbation_key


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """One agent. `hyperparameters` are those of scope "member"; missing ones have their default."""

    name: str
    seed: int
    hyperparameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CohortConfig:
    """M agents of one algorithm and one network shape. `shared` are hyperparameters of any scope,
    for all members.

    A member's own value overrides the shared one, and that the catalogue's default.
    """

    algorithm: str
    members: tuple[MemberConfig, ...]
    shared: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.members:
            raise InvalidInput(
                "a cohort needs at least one member",
                violations=[FieldViolation("members", "is empty")],
            )

    def shared_values(self, info: AlgorithmInfo) -> dict[str, Any]:
        """Hyperparameters of scope "cohort" and "network". Raises InvalidInput for an unknown name
        or a bad value."""
        values = info.defaults("cohort", "network")
        for name, value in self.shared.items():
            knob = info.hyperparameter(name)
            knob.check(value)
            if name in values:
                values[name] = tuple(value) if knob.kind == "sizes" else value
        return values

    def member_values(self, info: AlgorithmInfo) -> dict[str, list[float]]:
        """Hyperparameters of scope "member", one value a member. Raises InvalidInput as
        `shared_values` does."""
        defaults = info.defaults("member")
        defaults |= {name: value for name, value in self.shared.items() if name in defaults}
        values: dict[str, list[float]] = {name: [] for name in defaults}
        for member in self.members:
            check_member_hyperparameters(info, member.hyperparameters)
            for name, default in defaults.items():
                values[name].append(float(member.hyperparameters.get(name, default)))
        return values


def check_member_hyperparameters(info: AlgorithmInfo, values: Mapping[str, float]) -> None:
    """Raises InvalidInput unless every name is a hyperparameter that members may differ in, and in
    its range."""
    for name, value in values.items():
        knob = info.hyperparameter(name)
        if knob.scope != "member":
            raise InvalidInput(
                f"{name} is one for the whole cohort; set it in `shared`", field=name
            )
        knob.check(value)


class Hyperparameters(dict[str, Tensor]):
    """Those of scope "member" by name, float32 [M] each, which `change` writes into."""

    def __init__(
        self, cohort: CohortConfig, info: AlgorithmInfo, device: torch.device | str
    ) -> None:
        values = cohort.member_values(info)
        super().__init__({name: torch.tensor(own, device=device) for name, own in values.items()})
        self._info = info
        # Known to the host, so that the path without what a 0 turns off costs nothing.
        self._positive = {name: [value > 0 for value in own] for name, own in values.items()}

    def any_positive(self, name: str) -> bool:
        """Whether a member's value is above 0. Does not wait for the device."""
        return any(self._positive[name])

    def change(self, member: int, values: Mapping[str, float]) -> None:
        """Raises InvalidInput as `check_member_hyperparameters` does."""
        check_member_hyperparameters(self._info, values)
        for name, value in values.items():
            self[name][member] = value
            self._positive[name][member] = value > 0


class Progress:
    """What each member has learned from so far: the step that its environments have come to, and
    transitions; int64 [M] each."""

    def __init__(self, members: int, device: torch.device | str) -> None:
        self.steps = torch.zeros(members, dtype=torch.int64, device=device)
        self.transitions = torch.zeros_like(self.steps)

    def add(self, rollout: Rollout) -> None:
        """Count a rollout."""
        self.steps.copy_(rollout.first_step).add_(rollout.horizon)
        self.transitions += rollout.valid.sum((0, 2))


@dataclass(frozen=True, slots=True)
class Shared:
    """An algorithm's own tensors and statistics, which go on changing while it learns.

    parameters   name -> view [M, …] of what gradient steps and targets move; to write into it is to
                 change it
    normalizers  by name
    transitions  int64 [M]
    active       bool [M]
    values       the critic behind `critic_head`, where it learns in units of its own
    critic_head  names of the weight and the bias of its last layer
    """

    parameters: Mapping[str, Tensor]
    normalizers: Mapping[str, RunningNormalizer]
    transitions: Tensor
    active: Tensor
    values: StateValues | None = None
    critic_head: tuple[str, str] = ("", "")


class Sharing:
    """Gives what a learner brings to a fusion, and takes the result over.

    Moments of optimizers stay each learner's own and go on over a fusion, as in DiLoCo: to average
    them is two times the parameters more to send, and to reset them is a warm-up after each. What
    else only one learner knows (replay, random streams, counters of its own) stays with it.

    A critic whose rewards or targets are normalized comes with its last layer in units of reward
    (float64): each learner's units are its own, and weights of different units have no mean."""

    def __init__(self, shared: Shared, loaded: Callable[[], None]) -> None:
        """`loaded` is called after each `load`. From now on normalizers keep account of their
        growth; the observations' changes by `load` alone, since weights that act on differently
        normalized inputs have no mean."""
        self._shared, self._loaded = shared, loaded
        self._growths = {
            name: normalizer.share(frozen=name == "observations")
            for name, normalizer in shared.normalizers.items()
        }
        self._taken = shared.transitions.clone()

    @property
    def transitions(self) -> Tensor:
        """int64 [M], copied: environment steps of each agent, this learner's since the last `load`
        included."""
        return self._shared.transitions.clone()

    @torch.no_grad()
    def state(self) -> FusionState:
        """A copy of the learner's state, from which all others begin."""
        stands = self._stands()
        parameters = {name: tensor.clone() for name, tensor in stands.parameters.items()}
        return FusionState(
            parameters, stands.statistics, stands.transitions.clone(), stands.active.clone()
        )

    @torch.no_grad()
    def growth(self) -> FusionState:
        """A learner's contribution: its parameters, and the growth of its statistics and
        transitions."""
        stands = self._stands()
        return FusionState(
            {name: tensor.clone() for name, tensor in stands.parameters.items()},
            {name: growth.moments() for name, growth in self._growths.items()},
            stands.transitions - self._taken,
            stands.active.clone(),
        )

    @torch.no_grad()
    def load(self, state: FusionState) -> None:
        """Go on from `state`. Raises InvalidInput for another cohort's.

        Call it between two updates, before the weights of the former update are given out: the
        policy version is that of the update."""
        self._stands().require_like(state)
        shared = self._shared
        for name, normalizer in shared.normalizers.items():
            normalizer.load_moments(state.statistics[name])
        parameters = dict(state.parameters)
        if shared.values is not None:
            weight, bias = (parameters.pop(name) for name in shared.critic_head)
            shared.values.load_reward_head(weight, bias)
        for name, tensor in parameters.items():
            shared.parameters[name].copy_(tensor)
        shared.transitions.copy_(state.transitions)
        shared.active.copy_(state.active)
        self._taken.copy_(state.transitions)
        self._loaded()

    @torch.no_grad()
    def settle(self) -> None:
        """Have all statistics take in their growth, at the end of a round: what is not fused is the
        learner's own, and belongs into its checkpoint. What `growth` gives does not change, and
        more than once is as once."""
        for normalizer in self._shared.normalizers.values():
            normalizer.settle()
        self._loaded()

    def _stands(self) -> FusionState:
        """The learner's state, with views of what it trains."""
        shared = self._shared
        parameters = dict(shared.parameters)
        if shared.values is not None:
            parameters |= dict(zip(shared.critic_head, shared.values.reward_head(), strict=True))
        statistics = {name: normalizer.moments() for name, normalizer in shared.normalizers.items()}
        return FusionState(parameters, statistics, shared.transitions, shared.active)


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


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names begin with `prefix` and a dot, by the rest of their names."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): tensor
        for name, tensor in tensors.items()
        if name.startswith(start)
    }


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
