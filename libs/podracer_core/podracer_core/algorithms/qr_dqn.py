"""Quantile Regression DQN of M agents at once: docs/algorithms/qr_dqn.md has the equations and all
deviations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.dqn import DQN
from podracer_core.algorithms.experience import Batch
from podracer_core.algorithms.values import ensemble_outputs
from podracer_core.errors import InvalidInput
from podracer_core.networks import ValueHead


class QRDQN(DQN):
    """Dabney et al., 2018 (arXiv:1710.10044): DQN whose network gives K equally likely returns of
    each action."""

    graph_safe = True

    @classmethod
    def make_head(
        cls,
        shared: Mapping[str, Any],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str,
    ) -> ValueHead:
        return ValueHead(action_space, dueling=False, quantiles=shared["quantiles"])

    def taken(self, output: Tensor, action: Tensor) -> Tensor:
        """The quantiles of the actions taken, [M, N, B, K]."""
        quantiles = torch.unflatten(output, -1, (self.head.actions, -1))
        chosen = action.view(self.members, 1, -1, 1, 1).expand(
            -1, output.shape[1], -1, -1, quantiles.shape[-1]
        )
        return quantiles.gather(3, chosen).squeeze(3)

    def error(self, values: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Towards r + γ θ̄_j(s', a*), a* = argmax_a mean_j θ̄_j(s', a) (equation 11); of an
        ensemble θ̄ is the network with the smallest mean."""
        following = ensemble_outputs(self.policy.target, batch.next_observation)
        quantiles = self.taken(following, self.head.combine(following).argmax(-1))
        least = (
            quantiles.mean(-1).argmin(1)[:, None, :, None].expand(-1, 1, -1, quantiles.shape[-1])
        )
        following = quantiles.gather(1, least).squeeze(1)
        target = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * following
        return quantile_error(values, target, batch.weight, self.hyperparameters["huber_threshold"])


def quantile_error(
    quantiles: Tensor, target: Tensor, weight: Tensor, threshold: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Equation 10 of quantiles [M, N, B, K] against target [M, B, K'], rows weighted by weight [M,
    B], with κ = `threshold` [M].

    Returns as `squared_error`: the loss [M], a sum over quantiles of means over the target; its
    derivative in the quantiles; how far the means are apart, [M, B]. Raises InvalidInput for other
    shapes."""
    members, _, rows, count = quantiles.shape
    if target.shape[:2] != (members, rows) or weight.shape != (members, rows):
        raise InvalidInput(
            f"quantiles {list(quantiles.shape)} do not fit targets {list(target.shape)}"
        )
    quantiles, row = quantiles.detach(), weight.view(members, 1, rows, 1)
    # NaN if it is infinite: otherwise its slope would be that of a large loss
    target = target + 0.0 * target
    error = target[:, None, :, None, :] - quantiles.unsqueeze(-1)  # [M, N, B, K, K']
    middle = (torch.arange(count, device=error.device) + 0.5) / count
    share = (middle.unsqueeze(-1) - (error < 0).float()).abs()
    limit = threshold.view(-1, 1, 1, 1, 1)
    bounded = torch.minimum(torch.maximum(error, -limit), limit) / limit
    slope = -(share * bounded).mean(-1) * row
    loss = (share * bounded * (error - 0.5 * limit * bounded)).mean(-1) * row
    return (
        loss.sum((1, 2, 3)),
        slope,
        (target.mean(-1).unsqueeze(1) - quantiles.mean(-1)).abs().mean(1),
    )
