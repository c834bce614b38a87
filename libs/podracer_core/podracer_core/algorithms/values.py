"""Networks that learn, and the error of action values against a target.

A network has parameters, an optimizer and, where wanted, a copy that follows it slowly. Shapes are checked, so that
nothing broadcasts unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.networks import Architecture, StackedNetwork, StackedParameters
from podracer_core.optimizers import StackedAdam, clip_gradient_

_ADAM_EPSILON = 1e-8
_TARGET = "target."


class TrainedNetwork:
    """N networks of one shape for each of M members; member m's are number m * N … m * N + N - 1.

    network   M * N networks with gradients
    frozen    the same without: a view, which shows other networks the way and learns nothing from it
    first     of these only the first of each member
    target    the slow copy, without gradients; the networks themselves unless asked for
    """

    def __init__(
        self,
        members: int,
        architecture: Architecture,
        device: torch.device | str,
        *,
        count: int = 1,
        with_target: bool = False,
    ) -> None:
        self.members, self.count = members, count
        self._parameters = StackedParameters(members * count, architecture.shapes(), device)
        self.network = StackedNetwork.of(architecture, self._parameters)
        self.frozen, self.first = self.network.every(), self.network.every(0, count)
        rows = self._parameters.flat.view(members, -1)
        self._gradients = self._parameters.gradient.view(members, -1)
        self.optimizer = StackedAdam(rows, self._gradients, epsilon=_ADAM_EPSILON)
        self._target = (
            StackedParameters(members * count, architecture.shapes(), device) if with_target else self._parameters
        )
        self._with_target = with_target
        self.target = StackedNetwork.of(architecture, self._target).every()

    def initialize(self, seeds: Tensor, identity: int) -> None:
        """Fresh weights from the agents' seeds int64 [M], and a target equal to them.

        `identity` tells an algorithm's networks apart: an ensemble takes `identity` … `identity + N - 1`.
        """
        for index in range(self.count):
            self.frozen.every(index, self.count).initialize(seeds, identity + index, "fan_in")
        self._target.flat.copy_(self._parameters.flat)

    @torch.no_grad()
    def minimize(
        self, output: Tensor, slope: Tensor | None, learning_rate: Tensor, active: Tensor, max_norm: Tensor | None
    ) -> Tensor:
        """One step of Adam down a loss whose derivative in `output` is `slope` (None: output is the loss itself, [M]).

        Returns which members could take it, bool [M]: those that are `active` and whose gradient is finite. max_norm
        [M]: gradients are scaled down to it where it is above 0.
        """
        self._parameters.zero_gradient()
        torch.autograd.backward(output, torch.ones_like(output) if slope is None else slope)
        self._parameters.gather_gradient()
        if max_norm is None:
            norm = torch.linalg.vector_norm(self._gradients, dim=1)
        else:
            norm = clip_gradient_(self._gradients, torch.where(max_norm > 0, max_norm, torch.inf))
        learns: Tensor = active & norm.isfinite()
        self.optimizer.step(learning_rate, learns)
        if self.network.normalized is not None:
            self.network.normalized.settle(learns.repeat_interleave(self.count))
        return learns

    @torch.no_grad()
    def follow(self, rate: Tensor) -> None:
        """target += rate * (network - target), rate [M]."""
        target, source = (p.flat.view(self.members, -1) for p in (self._target, self._parameters))
        target.lerp_(source, rate.unsqueeze(1))

    def shared(self) -> dict[str, Tensor]:
        """Views of all members' networks, [M, N, …] each ([M, …] where N is 1), and of targets as `target.NAME`: to
        write into them is to change them."""
        views = self._stacked(self._parameters)
        if self._with_target:
            views |= {_TARGET + name: tensor for name, tensor in self._stacked(self._target).items()}
        return views

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's networks, [N, …] each ([…] where N is 1), and of its targets as `target.NAME`."""
        state = self._group(self._parameters, member)
        if self._with_target:
            state |= {_TARGET + name: tensor for name, tensor in self._group(self._target, member).items()}
        return state

    def load_member_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite one member with what `member_state` gave. Raises InvalidInput for other names or shapes."""
        own = {name: tensor for name, tensor in state.items() if not name.startswith(_TARGET)}
        self._load_group(self._parameters, member, own)
        if self._with_target:
            target = {n.removeprefix(_TARGET): tensor for n, tensor in state.items() if n.startswith(_TARGET)}
            self._load_group(self._target, member, target)

    def _stacked(self, parameters: StackedParameters) -> dict[str, Tensor]:
        ensemble = () if self.count == 1 else (self.count,)
        return {
            name: parameters[name].detach().view(self.members, *ensemble, *shape)
            for name, shape in parameters.shapes.items()
        }

    def _group(self, parameters: StackedParameters, member: int) -> dict[str, Tensor]:
        groups = [parameters.group_state(member * self.count + index) for index in range(self.count)]
        return groups[0] if self.count == 1 else {name: torch.stack([g[name] for g in groups]) for name in groups[0]}

    def _load_group(self, parameters: StackedParameters, member: int, state: Mapping[str, Tensor]) -> None:
        for index in range(self.count):
            one = state if self.count == 1 else {name: tensor[index] for name, tensor in state.items()}
            parameters.load_group_state(member * self.count + index, one)


def ensemble_outputs(
    network: StackedNetwork, observation: Tensor, action: Tensor | None = None, *, by_batch: bool = False
) -> Tensor:
    """The outputs of N networks a member: observation [M, B, obs], action [M, B, A] -> [M, N, B, outputs]."""
    members = observation.shape[0]
    count = network.weights[0].shape[0] // members

    def repeated(tensor: Tensor) -> Tensor:
        return tensor if count == 1 else tensor.unsqueeze(1).expand(-1, count, -1, -1).flatten(0, 1)

    output = network(repeated(observation), None if action is None else repeated(action), by_batch=by_batch)
    return output.view(members, count, *output.shape[1:])


def action_values(network: StackedNetwork, observation: Tensor, action: Tensor) -> Tensor:
    """Q(s, a) of N critics a member: observation [M, B, obs], action [M, B, A] -> [M, N, B]."""
    return ensemble_outputs(network, observation, action).squeeze(-1)


def squared_error(values: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """values [M, N, B] against target [M, B], rows weighted by weight [M, B].

    Returns the loss [M], half the weighted squares summed over rows and networks, its derivative in the values
    [M, N, B], and the mean size of the networks' errors [M, B]. Raises InvalidInput for other shapes: a [B] against a
    [B, 1] would become a [B, B].
    """
    members, _, rows = values.shape
    if target.shape != (members, rows) or weight.shape != (members, rows):
        raise InvalidInput(
            f"values [M, N, B] {list(values.shape)} do not fit targets {list(target.shape)} and weights "
            f"{list(weight.shape)}"
        )
    error = values.detach() - target.unsqueeze(1)
    slope = error * weight.unsqueeze(1)
    return 0.5 * (error * slope).sum((1, 2)), slope, error.abs().mean(1)
