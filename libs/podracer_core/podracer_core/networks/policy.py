"""One trained policy alone: from raw observations to greedy actions, with nothing but torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from podracer_core.networks.action_head import ActionHead, CategoricalHead, GaussianHead

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


class Policy(nn.Module):
    """forward: raw observation [B, *obs] -> greedy action [B, *action], in the environment's units.

    Discrete: int64 [B], the most probable action. Box: the mean, scaled and clipped to the action space.
    `torch.export.export` takes it with a dynamic first axis; the observation normalizer is part of it.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        activation: str,
        mean: Tensor,
        scale: Tensor,
        observation_limit: float,
        head: ActionHead,
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("scale", scale.detach().clone())
        self.observation_limit = observation_limit
        layers: list[nn.Module] = []
        for weight, bias in zip(weights, biases, strict=True):
            layer = nn.Linear(weight.shape[0], weight.shape[1])
            layer.weight.data.copy_(weight.detach().t())
            layer.bias.data.copy_(bias.detach().view(-1))
            layers += [layer, _ACTIVATIONS[activation]()]
        self.network = nn.Sequential(*layers[:-1])
        self._gaussian = isinstance(head, GaussianHead)
        self.start = head.start if isinstance(head, CategoricalHead) else 0
        if isinstance(head, GaussianHead):
            self.action_shape = head.environment_shape
            for name in ("low", "high", "action_scale", "action_offset"):
                self.register_buffer(name, getattr(head, name.removeprefix("action_")).detach().clone())
        self.eval().requires_grad_(False)

    mean: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    action_scale: Tensor
    action_offset: Tensor

    def forward(self, observation: Tensor) -> Tensor:
        """observation [B, *obs] -> action [B, *action]."""
        normalized = (observation.flatten(1).float() - self.mean) / self.scale
        output = self.network(normalized.clamp(-self.observation_limit, self.observation_limit))
        if not self._gaussian:
            return torch.argmax(output, -1) + self.start
        action = torch.minimum(torch.maximum(self.action_offset + self.action_scale * output, self.low), self.high)
        return action.view(-1, *self.action_shape)
