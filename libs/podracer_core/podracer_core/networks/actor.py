"""The part of an algorithm that acts: all that a worker or an evaluator needs of it; an actor and a
critic of one shape for every member, as one stack of networks; and one trained policy alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import gymnasium
import torch
from torch import Tensor, nn

from podracer_core.device import require_memory
from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import ActionHead, PolicyHead
from podracer_core.networks.stacked_mlp import StackedParameters
from podracer_core.networks.stacked_network import (
    Architecture,
    StackedNetwork,
    image_shape,
    observation_size,
)


class Policy(nn.Module):
    """forward: raw observation [B, *obs] -> greedy action [B, *action], in the environment's units.

    Discrete: int64 [B], MultiDiscrete and MultiBinary: int64 [B, k], the most probable choices.
    Box: the mean, scaled and clipped to the action space. `torch.export.export` takes it with a
    dynamic first axis; the observation normalizer is part of it, and so is `origin`, float64 [*obs]
    or None. It knows no action masks."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        mean: Tensor,
        scale: Tensor,
        observation_limit: float | None,
        action: nn.Module,
    ) -> None:
        """`networks`: [B, obs] -> [B, outputs] each; `action`: the outputs [B, outputs] of a single
        network, or of N networks [N, B, outputs], to actions; mean and scale [obs]."""
        super().__init__()
        self.register_buffer("origin", None)
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("scale", scale.detach().clone())
        self.observation_limit = observation_limit
        self.networks = nn.ModuleList(networks)
        self.action = action
        self.eval().requires_grad_(False)

    origin: Tensor | None
    mean: Tensor
    scale: Tensor

    def forward(self, observation: Tensor) -> Tensor:
        """observation [B, *obs] -> action [B, *action]."""
        raw = observation if self.origin is None else observation - self.origin
        normalized = (raw.flatten(1).float() - self.mean) / self.scale
        if self.observation_limit is not None:
            normalized = normalized.clamp(-self.observation_limit, self.observation_limit)
        outputs = [network(normalized) for network in self.networks]
        action: Tensor = self.action(outputs[0] if len(outputs) == 1 else torch.stack(outputs))
        return action


# Normalized observations are clipped to this many standard deviations.
OBSERVATION_LIMIT = 10.0
_BRIGHTEST = 255.0


class Actor(ABC):
    """M policies that act at once, with their frozen normalizers."""

    members: int
    head: ActionHead
    device: torch.device

    @abstractmethod
    def act(
        self, observation: Tensor, noise: Tensor, action_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """observation [M, E, *obs] raw, noise [M, E, noise_size], action_mask [M, E, n] bool (the
        allowed ones) -> stored action [M, E, …], log-probability [M, E]."""

    @abstractmethod
    def greedy(self, observation: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """observation [M, E, *obs] raw -> the deterministic action [M, E, *action] in the
        environment's units."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Copies of everything that changes while training, [M, …] each: what a learner sends to
        its workers."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, in place. Raises InvalidInput where names or shapes
        differ."""

    @abstractmethod
    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over one member from the groups `actor` and `normalizer` of a checkpoint; other
        groups are ignored."""

    @abstractmethod
    def policy(self, member: int) -> Policy:
        """One member alone as a module that needs nothing but torch, normalization included."""

    @abstractmethod
    def member(self, member: int) -> Actor:
        """A copy of one member, as an actor of M = 1 on the same device."""

    @abstractmethod
    def repeat(self, times: int) -> Actor:
        """A copy in which each member stands `times` times in a row: M * times members. Raises
        InvalidInput (NETWORKS_TOO_LARGE) where the device has not enough free memory for it."""

    def draw_noise(self, key: Tensor, counter: Tensor, horizon: int) -> Tensor:
        """The noise of `horizon` steps in one call: key int64 [M, E], counter int64 [M] -> [T, M,
        E, noise_size]."""
        return self.head.draw_noise(key, counter, horizon)


class NetworkActor(Actor):
    """Networks over normalized observations and an action head. Its tensors may be views that a
    learner trains.

    network      M * N networks, member m's are number m * N … m * N + N - 1 (N is 1 but for
                 ensembles)
    settings     the head's own tensors by name, [M, …]
    mean, scale  [M, 1, obs]: normalized = clip((raw - mean) / scale); nothing is clipped where
                 `limit` is None. Also of numbers that only a critic sees; observations to act on
                 may lack these
    """

    def __init__(
        self,
        network: StackedNetwork,
        head: ActionHead,
        settings: Mapping[str, Tensor],
        mean: Tensor,
        scale: Tensor,
        limit: float | None,
    ) -> None:
        self.network, self.head, self.settings = network, head, dict(settings)
        self.mean, self.scale, self.limit = mean, scale, limit
        self.members, self.device = mean.shape[0], mean.device
        self._ensemble = network.weights[0].shape[0] // self.members

    @classmethod
    def build(
        cls,
        network: StackedNetwork,
        head: ActionHead,
        space: gymnasium.Space[Any],
        members: int,
        *,
        normalize: bool,
        settings: Mapping[str, Tensor] | None = None,
    ) -> NetworkActor:
        """An actor with settings of zero where none are given, and a normalizer that changes
        nothing yet but the pixels of images, which become 0 … 1. `normalize`: the learner will
        renew it."""
        device, size = network.weights[0].device, observation_size(space)
        own = {
            name: torch.zeros(members, *shape, device=device)
            for name, shape in head.settings.items()
        }
        brightest = 1.0 if image_shape(space) is None else _BRIGHTEST
        return cls(
            network,
            head,
            own | dict(settings or {}),
            torch.zeros(members, 1, size, device=device),
            torch.full((members, 1, size), brightest, device=device),
            OBSERVATION_LIMIT if normalize and image_shape(space) is None else None,
        )

    @classmethod
    def idle(
        cls,
        architecture: Architecture,
        head: ActionHead,
        space: gymnasium.Space[Any],
        members: int,
        device: torch.device | str,
        *,
        normalize: bool,
        ensemble: int = 1,
    ) -> NetworkActor:
        """An actor without a learner; its weights are zero until it loads a state. Raises
        InvalidInput (NETWORKS_TOO_LARGE) where the device has not enough free memory for them."""
        shapes, count = architecture.shapes(), members * ensemble
        _require_memory(
            4 * count * sum(map(math.prod, shapes.values())), count, torch.device(device)
        )
        tensors = {
            name: torch.zeros(count, *shape, device=device) for name, shape in shapes.items()
        }
        return cls.build(
            StackedNetwork(architecture, tensors), head, space, members, normalize=normalize
        )

    def normalize(self, observation: Tensor) -> Tensor:
        """observation [M, B, *obs] raw -> [M, B, obs] flat, float32."""
        flat = observation.flatten(2) if observation.dim() > 3 else observation
        size = flat.shape[-1]
        normalized = (flat - self.mean[..., :size]).div_(self.scale[..., :size])
        return normalized if self.limit is None else normalized.clamp_(-self.limit, self.limit)

    def output(self, normalized: Tensor) -> Tensor:
        """normalized observations [M, B, obs] -> what the head takes, [M, B, _]."""
        if self._ensemble == 1:
            return self.head.combine(self.network(normalized).unsqueeze(1))
        outputs = self.network(normalized.repeat_interleave(self._ensemble, 0))
        return self.head.combine(outputs.view(self.members, self._ensemble, *outputs.shape[1:]))

    def act(
        self, observation: Tensor, noise: Tensor, action_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        normalized = self.normalize(observation)
        output = self.output(normalized)
        if action_mask is not None:
            output = self.head.allow(output, action_mask)
        return self.head.sample(output, self.settings, noise, normalized)

    def greedy(self, observation: Tensor, action_mask: Tensor | None = None) -> Tensor:
        output = self.output(self.normalize(observation))
        if action_mask is not None:
            output = self.head.allow(output, action_mask)
        return self.head.to_environment(self.head.mode(output))

    def member(self, member: int) -> NetworkActor:
        return self._map(lambda tensor: tensor[member : member + 1].clone(), self.head)

    def acts_like(self, other: object) -> TypeGuard[NetworkActor]:
        """Whether `other` would do the same with this one's state: shapes, head and limits are the
        same."""
        return (
            isinstance(other, NetworkActor)
            and self.head is other.head
            and (self.network.architecture, self.members, self._ensemble, self.limit)
            == (other.network.architecture, other.members, other._ensemble, other.limit)
        )

    def repeat(self, times: int) -> NetworkActor:
        size_bytes = times * sum(tensor.nbytes for tensor in self._tensors().values())
        _require_memory(size_bytes, times * self.members * self._ensemble, self.device)
        return self._map(lambda tensor: tensor.repeat_interleave(times, 0), self.head)

    def _map(self, change: Callable[[Tensor], Tensor], head: ActionHead) -> NetworkActor:
        """`change` takes tensors [M, …] and gives [M', …]."""
        return NetworkActor(
            self.network.map(lambda tensor: change(self._by_member(tensor)).flatten(0, 1)),
            head,
            {name: change(tensor) for name, tensor in self.settings.items()},
            change(self.mean),
            change(self.scale),
            self.limit,
        )

    def _by_member(self, tensor: Tensor) -> Tensor:
        """A network's parameter [M * N, …] -> [M, N, …]."""
        return tensor.detach().reshape(-1, self._ensemble, *tensor.shape[1:])

    def _tensors(self) -> dict[str, Tensor]:
        """Views [M, …] of everything; of an ensemble's networks [M, N, …]."""
        tensors = {**self.settings, "observation_mean": self.mean, "observation_scale": self.scale}
        for name, tensor in self.network.tensors.items():
            tensors[name] = tensor.detach() if self._ensemble == 1 else self._by_member(tensor)
        return tensors

    def finite(self) -> Tensor:
        """Whether all weights of each member are finite, bool [M]."""
        tensors = (
            tensor.reshape(self.members, -1)
            for tensor in (*self.network.tensors.values(), self.mean)
        )
        return torch.stack([tensor.isfinite().all(1) for tensor in tensors]).all(0)

    def state(self) -> dict[str, Tensor]:
        return {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in self._tensors().items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        tensors = self._tensors()
        if {name: t.shape for name, t in state.items()} != {
            name: t.shape for name, t in tensors.items()
        }:
            raise InvalidInput("the actor state is of another cohort or of other network sizes")
        for name, tensor in tensors.items():
            tensor.copy_(state[name])

    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name, tensor in self._tensors().items():
            group, key = (
                ("normalizer", name) if name.startswith("observation_") else ("actor", name)
            )
            value = state.get(group, {}).get(key)
            if value is None or value.numel() != tensor[member].numel():
                raise InvalidInput(
                    f"the checkpoint's {group} group has no {key} of shape "
                    f"{tuple(tensor[member].shape)}"
                )
            tensor[member].copy_(value.view(tensor[member].shape))

    def policy(self, member: int) -> Policy:
        first, size = member * self._ensemble, self.network.architecture.inputs
        return Policy(
            [self.network.module(group) for group in range(first, first + self._ensemble)],
            self.mean[member, 0, :size],
            self.scale[member, 0, :size],
            self.limit,
            self.head.greedy_module(),
        )


def _require_memory(size_bytes: int, count: int, device: torch.device) -> None:
    what, reason = f"a stack of {count} networks of these sizes", "NETWORKS_TOO_LARGE"
    require_memory(size_bytes, device, what, field="hidden_sizes", reason=reason)


ACTOR, CRITIC = 0, 1
_ACTION_GAIN, _VALUE_GAIN = 0.01, 1.0


class ActorCritic:
    """2 M networks: number 2 m is m's actor, 2 m + 1 its critic, which uses only its first output
    (and no log_std).

    So one operation serves both, and a member's parameters lie in one row: what one of them does
    not use has no gradient and stays zero. An actor uses only the first `actor_inputs` numbers of
    an observation.

    both               2 M networks with gradients; actor, critic  M networks each, views without
                                                                   gradients
    parameters         of all; `member_parameters`, `member_gradients` [M, P] show them to an
                       optimizer
    settings           the head's tensors: `log_std` [M, A] of a Gaussian, a view without gradients
    """

    def __init__(
        self,
        members: int,
        architecture: Architecture,
        head: PolicyHead,
        device: torch.device | str = "cpu",
        actor_inputs: int | None = None,
    ) -> None:
        self.members, self.head = members, head
        shapes = architecture.shapes() | dict(head.settings)
        self.parameters = StackedParameters(2 * members, shapes, device)
        self.both = StackedNetwork.of(architecture, self.parameters)
        self.actor_inputs = architecture.inputs if actor_inputs is None else actor_inputs
        self.actor, self.critic = (
            self.both.every(ACTOR, 2).narrowed(self.actor_inputs),
            self.both.every(CRITIC, 2),
        )
        sees = torch.ones(2, 1, architecture.inputs, dtype=torch.bool, device=device)
        sees[ACTOR, :, self.actor_inputs :] = False
        self._sees = None if self.actor_inputs == architecture.inputs else sees
        self.settings = {name: self.parameters[name].detach()[ACTOR::2] for name in head.settings}
        self._settings_gradients = [
            self.parameters.gradient_of(name)[ACTOR::2] for name in head.settings
        ]
        self.member_parameters = self.parameters.flat.view(members, -1)
        self.member_gradients = self.parameters.gradient.view(members, -1)
        self._last_layer = f"layers.{len(architecture.dense_sizes) - 2}."

    def __call__(self, observation: Tensor) -> Tensor:
        """observation [M, B, obs] -> [M, 2, B, outputs], with gradients: [:, ACTOR] and [:, CRITIC,
        :, 0] are used."""
        members, rows, _ = observation.shape
        twice = observation.unsqueeze(1).expand(-1, 2, -1, -1)
        if self._sees is not None:
            twice = torch.where(self._sees, twice, 0.0)
        return self.both(twice.reshape(2 * members, rows, -1)).view(members, 2, rows, -1)

    def gather_settings(self, log_std_gradient: Tensor) -> None:
        """Write the gradient in log_std [M, A] into `member_gradients`."""
        for gradient in self._settings_gradients:
            gradient.copy_(log_std_gradient)

    def initialize(self, seeds: Tensor, log_std: float) -> None:
        """Orthogonal weights and zero biases, from each agent's own seed: seeds int64 [M]."""
        self.actor.initialize(seeds, ACTOR, "orthogonal", _ACTION_GAIN)
        self.critic.initialize(seeds, CRITIC, "orthogonal", _VALUE_GAIN, last_columns=1)
        for setting in self.settings.values():
            setting.fill_(log_std)

    @property
    def critic_head(self) -> tuple[str, str]:
        """Names of the weight and the bias of the critic's last layer in `shared`."""
        return f"critic.{self._last_layer}weight", f"critic.{self._last_layer}bias"

    def shared(self) -> dict[str, Tensor]:
        """Views of what is used, [M, …], as `actor.NAME` and `critic.NAME`: to write into them is
        to change them."""
        actors = self.actor.tensors | self.settings
        views = {f"actor.{name}": actors[name] for name in self.parameters.shapes}
        for name, critic in self.critic.tensors.items():
            views[f"critic.{name}"] = (
                critic[..., :1] if name.startswith(self._last_layer) else critic
            )
        return views

    def member_state(self, member: int) -> dict[str, dict[str, Tensor]]:
        """Copies of one member's groups `actor` and `critic`: what is used, by layer, without the
        member axis."""
        return {
            group: {name: view.clone() for name, view in own.items()}
            for group, own in self._views(member).items()
        }

    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Overwrite one member with the groups that are there. Raises InvalidInput where a shape
        differs."""
        for group, own in self._views(member).items():
            given = state.get(group, own)
            found, expected = (
                {name: list(each.shape) for name, each in part.items()} for part in (given, own)
            )
            if found != expected:
                raise InvalidInput(f"the {group} has parameters {found}, expected {expected}")
            for name, view in own.items():
                view.copy_(given[name])

    def _views(self, member: int) -> dict[str, dict[str, Tensor]]:
        """Of one member's groups."""
        every: dict[str, dict[str, Tensor]] = {"actor": {}, "critic": {}}
        for name, stacked in self.shared().items():
            group, _, parameter = name.partition(".")
            every[group][parameter] = stacked[member]
        return every
