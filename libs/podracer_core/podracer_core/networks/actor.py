"""The part of an algorithm that acts: all that a worker or an evaluator needs of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import ActionHead
from podracer_core.networks.policy import Policy
from podracer_core.networks.stacked_mlp import StackedMLP

# Normalized observations are clipped to this many standard deviations.
OBSERVATION_LIMIT = 10.0


class Actor(ABC):
    """M policies that act at once, with their frozen normalizers."""

    members: int
    head: ActionHead
    device: torch.device

    @abstractmethod
    def act(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """observation [M, E, *obs] raw, noise [M, E, noise_size] -> stored action [M, E, …], log-probability [M, E]."""

    @abstractmethod
    def greedy(self, observation: Tensor) -> Tensor:
        """observation [M, E, *obs] raw -> the deterministic action [M, E, *action] in the environment's units."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Copies of everything that changes while training, [M, …] each: what a learner sends to its workers."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, in place. Raises InvalidInput where names or shapes differ."""

    @abstractmethod
    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over one member from the groups `actor` and `normalizer` of a checkpoint; other groups are ignored."""

    @abstractmethod
    def policy(self, member: int) -> Policy:
        """One member alone as a module that needs nothing but torch, normalization included."""

    @abstractmethod
    def member(self, member: int) -> Actor:
        """A copy of one member on the CPU, as an actor of M = 1: a snapshot that goes on living as it is now."""

    @abstractmethod
    def repeat(self, times: int) -> Actor:
        """A copy in which each member stands `times` times in a row: M * times members."""

    def draw_noise(self, key: Tensor, counter: Tensor, horizon: int) -> Tensor:
        """The noise of `horizon` steps in one call: key int64 [M, E], counter int64 [M] -> [T, M, E, noise_size].

        Step t of member m uses the numbers (counter[m] + t) * noise_size … of its environments' streams.
        """
        size = self.head.noise_size
        step = counter.view(1, -1, 1, 1) + torch.arange(horizon, device=key.device).view(-1, 1, 1, 1)
        return self.head.draw_noise(key.unsqueeze(-1), step * size + torch.arange(size, device=key.device))


class StochasticActor(Actor):
    """An MLP over normalized observations and an action head. Its tensors may be views that a learner goes on training.

    network: M networks; log_std [M, A]; mean and scale [M, 1, obs]: normalized = clip((raw - mean) / scale).
    """

    def __init__(self, network: StackedMLP, log_std: Tensor, mean: Tensor, scale: Tensor, head: ActionHead) -> None:
        self.network, self.log_std, self.mean, self.scale, self.head = network, log_std, mean, scale, head
        self.members = mean.shape[0]
        self.device = mean.device

    def normalize(self, observation: Tensor) -> Tensor:
        """observation [M, B, *obs] raw -> [M, B, obs] flat, float32."""
        flat = observation.flatten(2) if observation.dim() > 3 else observation
        return (flat - self.mean).div_(self.scale).clamp_(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)

    def act(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return self.head.sample(self.network(self.normalize(observation)), self.log_std, noise)

    def greedy(self, observation: Tensor) -> Tensor:
        return self.head.to_environment(self.head.mode(self.network(self.normalize(observation))))

    def member(self, member: int) -> StochasticActor:
        return self._map(lambda tensor: tensor[member : member + 1].cpu().clone(), self.head.cpu())

    def repeat(self, times: int) -> StochasticActor:
        return self._map(lambda tensor: tensor.repeat_interleave(times, 0), self.head)

    def _map(self, change: Callable[[Tensor], Tensor], head: ActionHead) -> StochasticActor:
        network = StackedMLP(
            tuple(change(weight) for weight in self.network.weights),
            tuple(change(bias) for bias in self.network.biases),
            self.network.activation,
        )
        return StochasticActor(network, change(self.log_std), change(self.mean), change(self.scale), head)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"log_std": self.log_std, "observation_mean": self.mean, "observation_scale": self.scale}
        for layer, (weight, bias) in enumerate(zip(self.network.weights, self.network.biases, strict=True)):
            tensors |= {f"layers.{layer}.weight": weight, f"layers.{layer}.bias": bias}
        return tensors

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in self._tensors().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        tensors = self._tensors()
        if {name: t.shape for name, t in state.items()} != {name: t.shape for name, t in tensors.items()}:
            raise InvalidInput("the actor state is of another cohort or of other network sizes")
        for name, tensor in tensors.items():
            tensor.copy_(state[name])

    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name, tensor in self._tensors().items():
            group, key = ("normalizer", name) if name.startswith("observation_") else ("actor", name)
            value = state.get(group, {}).get(key)
            if value is None or value.numel() != tensor[member].numel():
                raise InvalidInput(
                    f"the checkpoint's {group} group has no {key} of shape {tuple(tensor[member].shape)}"
                )
            tensor[member].copy_(value.view(tensor[member].shape))

    def policy(self, member: int) -> Policy:
        return Policy(
            [weight[member] for weight in self.network.weights],
            [bias[member] for bias in self.network.biases],
            self.network.activation,
            self.mean[member, 0],
            self.scale[member, 0],
            OBSERVATION_LIMIT,
            self.head,
        )


def observation_size(space: gymnasium.Space[Any]) -> int:
    """Numbers in one observation. Raises InvalidInput for a space without a fixed numeric shape."""
    if not isinstance(space, gymnasium.spaces.Box):
        raise InvalidInput(f"this network reads Box observations, not {space}", reason="UNSUPPORTED_OBSERVATION_SPACE")
    return math.prod(space.shape)
