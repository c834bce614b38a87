"""Action values of several networks for each member, and the error of values against a target: shapes are checked, so
that nothing broadcasts unnoticed."""

from __future__ import annotations

from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.networks import StackedNetwork


def ensemble_outputs(network: StackedNetwork, observation: Tensor, action: Tensor | None = None) -> Tensor:
    """The outputs of N networks a member: observation [M, B, obs], action [M, B, A] -> [M, N, B, outputs]."""
    members = observation.shape[0]
    count = network.weights[0].shape[0] // members

    def repeated(tensor: Tensor) -> Tensor:
        return tensor if count == 1 else tensor.unsqueeze(1).expand(-1, count, -1, -1).flatten(0, 1)

    output = network(repeated(observation), None if action is None else repeated(action))
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
