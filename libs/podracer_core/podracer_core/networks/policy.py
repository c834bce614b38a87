"""One trained policy alone: from raw observations to greedy actions, with nothing but torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


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
