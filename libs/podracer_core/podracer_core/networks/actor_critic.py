"""An actor and a critic of one shape for every member, as one stack of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import ActionHead
from podracer_core.networks.initialization import orthogonal
from podracer_core.networks.stacked_mlp import StackedMLP, mlp_shapes
from podracer_core.networks.stacked_parameters import StackedParameters
from podracer_core.random_streams import initialization_keys

ACTOR, CRITIC = 0, 1
_HIDDEN_GAIN, _ACTION_GAIN, _VALUE_GAIN = 2.0**0.5, 0.01, 1.0


class ActorCritic:
    """2 M networks: number 2 m is m's actor, 2 m + 1 its critic, which uses only its first output (and no log_std).

    So one operation serves both, and a member's parameters lie in one row: what the critic does not use has no
    gradient and stays zero.

    both               2 M networks with gradients; actor, critic  M networks each, views without gradients
    parameters         of all; `member_parameters`, `member_gradients` [M, P] show them to an optimizer
    log_std            [M, A], a view without gradients
    """

    def __init__(
        self,
        members: int,
        observation_size: int,
        hidden_sizes: Sequence[int],
        head: ActionHead,
        activation: str = "tanh",
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = (observation_size, *hidden_sizes, head.output_size)
        shapes = mlp_shapes(sizes) | {"log_std": (head.log_std_size,)}
        self.members = members
        self.parameters = StackedParameters(2 * members, shapes, device)
        self.both = StackedMLP.of(self.parameters, len(sizes) - 1, activation)
        self.actor, self.critic = self.both.every(ACTOR, 2), self.both.every(CRITIC, 2)
        self.log_std = self.parameters["log_std"].detach()[ACTOR::2]
        self.log_std_gradient = self.parameters.gradient_of("log_std")[ACTOR::2]
        self.member_parameters = self.parameters.flat.view(members, -1)
        self.member_gradients = self.parameters.gradient.view(members, -1)
        self._last_layer = f"layers.{len(sizes) - 2}."

    def __call__(self, observation: Tensor) -> Tensor:
        """observation [M, B, obs] -> [M, 2, B, outputs], with gradients: [:, ACTOR] and [:, CRITIC, :, 0] are used."""
        members, rows, _ = observation.shape
        twice = observation.unsqueeze(1).expand(-1, 2, -1, -1).reshape(2 * members, rows, -1)
        return self.both(twice).view(members, 2, rows, -1)

    def initialize(self, seeds: Tensor, log_std: float) -> None:
        """Orthogonal weights and zero biases, from each agent's own seed: seeds int64 [M]."""
        last = len(self.both.weights) - 1
        for layer, (actor, critic) in enumerate(zip(self.actor.weights, self.critic.weights, strict=True)):
            for network, weight, last_gain in ((ACTOR, actor, _ACTION_GAIN), (CRITIC, critic, _VALUE_GAIN)):
                rows, columns = weight.shape[1:]
                width = 1 if layer == last and network == CRITIC else columns
                gain = last_gain if layer == last else _HIDDEN_GAIN
                weight[:, :, :width] = orthogonal(initialization_keys(seeds, network, layer), rows, width, gain)
        self.log_std.fill_(log_std)

    def member_state(self, member: int) -> dict[str, dict[str, Tensor]]:
        """Copies of one member's groups `actor` and `critic`: what is used, by layer, without the member axis."""
        critic = self.parameters.group_state(2 * member + CRITIC)
        del critic["log_std"]
        for name, value in critic.items():
            if name.startswith(self._last_layer):
                critic[name] = value[:, :1].clone()
        return {"actor": self.parameters.group_state(2 * member + ACTOR), "critic": critic}

    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Overwrite one member with the groups that are there. Raises InvalidInput where a shape differs."""
        if "actor" in state:
            self.parameters.load_group_state(2 * member + ACTOR, state["actor"])
        if "critic" in state:
            critic = self.parameters.group_state(2 * member + CRITIC)
            for name, value in state["critic"].items():
                columns = 1 if name.startswith(self._last_layer) else None
                if name not in critic or value.shape != critic[name][:, :columns].shape:
                    raise InvalidInput(f"the critic's {name} has another name or shape than in this network")
                critic[name][:, :columns] = value
            self.parameters.load_group_state(2 * member + CRITIC, critic)
