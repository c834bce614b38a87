"""A Box of actions in the policy's units, and a diagonal Gaussian over it for PPO and A2C."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from podracer_core.catalogue import NO_BOUND
from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import Density, PolicyHead, Settings
from podracer_core.networks.discrete_heads import discrete_policy_head
from podracer_core.random_numbers import normal


class BoxUnits:
    """environment = offset + scale * own, clipped to the box. A dimension without two bounds keeps
    its units.

    low, high, scale, offset   float32 [size], size being the numbers in an action
    """

    def __init__(
        self,
        space: gymnasium.spaces.Box,
        device: torch.device | str = "cpu",
        *,
        bounded: bool = False,
    ) -> None:
        """`bounded`: every dimension must have two finite bounds. Raises InvalidInput if one has
        not."""
        self.space, self.shape, self.size = space, space.shape, math.prod(space.shape)
        low = np.asarray(space.low, np.float64).reshape(-1)
        high = np.asarray(space.high, np.float64).reshape(-1)
        finite = (np.abs(low) < NO_BOUND) & (np.abs(high) < NO_BOUND)
        if bounded and not finite.all():
            raise InvalidInput(
                f"this policy acts in a Box with finite bounds, not in {space}",
                reason="ACTION_SPACE_UNSUPPORTED",
            )
        with np.errstate(invalid="ignore"):
            scale = np.where(finite, (high - low) / 2, 1.0)
            offset = np.where(finite, (high + low) / 2, 0.0)

        def constant(values: np.ndarray[Any, Any]) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=device)

        self.low, self.high, self.scale, self.offset = map(constant, (low, high, scale, offset))

    def to_environment(self, action: Tensor) -> Tensor:
        """action [..., size] -> [..., *shape], in the box."""
        scaled = torch.addcmul(self.offset, self.scale, action)
        clipped = torch.minimum(torch.maximum(scaled, self.low), self.high)
        return clipped.view(*action.shape[:-1], *self.shape)

    def module(self, *, squash: bool = False) -> nn.Module:
        """The same for use with torch alone, after a tanh where `squash`."""
        return _ToEnvironment(self, squash)


class _ToEnvironment(nn.Module):
    def __init__(self, units: BoxUnits, squash: bool) -> None:
        super().__init__()
        self._shape, self._squash = units.shape, squash
        for name in ("low", "high", "scale", "offset"):
            self.register_buffer(name, getattr(units, name).detach().clone())

    low: Tensor
    high: Tensor
    scale: Tensor
    offset: Tensor

    def forward(self, output: Tensor) -> Tensor:
        own = output[:, : self.low.shape[0]]
        scaled = self.offset + self.scale * (own.tanh() if self._squash else own)
        return torch.minimum(torch.maximum(scaled, self.low), self.high).view(-1, *self._shape)


class GaussianDensity(Density):
    """See `GaussianHead`."""

    def __init__(self, output: Tensor, log_std: Tensor, action: Tensor) -> None:
        self._inverse_std = log_std.neg().exp().unsqueeze(1)
        self._standardized = (action - output) * self._inverse_std
        size = output.shape[-1]
        total = log_std.sum(-1, keepdim=True)
        self.log_prob = -0.5 * self._standardized.square().sum(-1) - (
            total + 0.5 * size * math.log(2 * math.pi)
        )
        self.entropy = (total + 0.5 * size * math.log(2 * math.pi * math.e)).expand_as(
            self.log_prob
        )

    def gradient(
        self, log_prob_gradient: Tensor, entropy_gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        # With z = (a - mean) / std:  d log p / d mean = z / std;  d log p / d log_std = z^2 - 1;  d
        #                             H / d log_std = 1
        outer = log_prob_gradient.unsqueeze(-1)
        squares = torch.addcmul(-outer, outer, self._standardized.square()).sum(1)
        return outer * self._standardized * self._inverse_std, squares + entropy_gradient.sum(
            1, keepdim=True
        )


class GaussianHead(PolicyHead):
    """Box actions: mean = output, a standard deviation that does not depend on the state,
    independent dimensions.

    The policy works in units in which the box is [-1, 1] (dimensions without two finite bounds keep
    their own). The stored action is the raw sample and its log-probability the raw density; only
    `to_environment` clips it. So the likelihood ratio is exact, and nothing is lost where the box
    ends."""

    action_dtype = torch.float32

    def __init__(self, space: gymnasium.spaces.Box, device: torch.device | str = "cpu") -> None:
        self.units = BoxUnits(space, device)
        self.output_size = self.noise_size = self.units.size
        self.settings = {"log_std": (self.units.size,)}
        self.action_shape = (self.units.size,)

    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return normal(key, counter)

    def sample(
        self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        log_std = settings["log_std"]
        action = torch.addcmul(output, log_std.exp().unsqueeze(1), noise)
        return action, GaussianDensity(output, log_std, action).log_prob

    def mode(self, output: Tensor) -> Tensor:
        return output

    def density(self, output: Tensor, settings: Settings, action: Tensor) -> Density:
        return GaussianDensity(output, settings["log_std"], action)

    def to_environment(self, action: Tensor) -> Tensor:
        return self.units.to_environment(action)

    def greedy_module(self) -> nn.Module:
        return self.units.module()


def make_policy_head(space: gymnasium.Space[Any], device: torch.device | str = "cpu") -> PolicyHead:
    """The head for an action space. Raises InvalidInput for anything but Discrete, MultiDiscrete,
    MultiBinary and a one-piece float Box."""
    discrete = discrete_policy_head(space)
    if discrete is not None:
        return discrete
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return GaussianHead(space, device)
    raise InvalidInput(
        "this policy acts in Discrete, MultiDiscrete, MultiBinary and float Box action spaces, "
        f"not in {space}",
        reason="ACTION_SPACE_UNSUPPORTED",
    )
