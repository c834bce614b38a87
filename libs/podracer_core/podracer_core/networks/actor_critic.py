"""An actor and a critic of one shape for every member, as one stack of networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import PolicyHead
from podracer_core.networks.stacked_network import Architecture, StackedNetwork
from podracer_core.networks.stacked_parameters import StackedParameters

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
