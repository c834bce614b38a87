"""A diagonal Gaussian over a box whose standard deviation does not depend on the state: PPO and A2C."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import Density, PolicyHead, Settings
from podracer_core.networks.box_units import BoxUnits
from podracer_core.networks.discrete_heads import discrete_policy_head
from podracer_core.random_numbers import normal


class GaussianDensity(Density):
    """See `GaussianHead`."""

    def __init__(self, output: Tensor, log_std: Tensor, action: Tensor) -> None:
        self._inverse_std = log_std.neg().exp().unsqueeze(1)
        self._standardized = (action - output) * self._inverse_std
        size = output.shape[-1]
        total = log_std.sum(-1, keepdim=True)
        self.log_prob = -0.5 * self._standardized.square().sum(-1) - (total + 0.5 * size * math.log(2 * math.pi))
        self.entropy = (total + 0.5 * size * math.log(2 * math.pi * math.e)).expand_as(self.log_prob)

    def gradient(self, log_prob_gradient: Tensor, entropy_gradient: Tensor) -> tuple[Tensor, Tensor]:
        # With z = (a - mean) / std:  d log p / d mean = z / std;  d log p / d log_std = z^2 - 1;  d H / d log_std = 1
        outer = log_prob_gradient.unsqueeze(-1)
        squares = torch.addcmul(-outer, outer, self._standardized.square()).sum(1)
        return outer * self._standardized * self._inverse_std, squares + entropy_gradient.sum(1, keepdim=True)


class GaussianHead(PolicyHead):
    """Box actions: mean = output, a standard deviation that does not depend on the state, independent dimensions.

    The policy works in units in which the box is [-1, 1] (dimensions without two finite bounds keep their own). The
    stored action is the raw sample and its log-probability the raw density; only `to_environment` clips it. So the
    likelihood ratio is exact, and nothing is lost where the box ends.
    """

    action_dtype = torch.float32

    def __init__(self, space: gymnasium.spaces.Box, device: torch.device | str = "cpu") -> None:
        self.units = BoxUnits(space, device)
        self.output_size = self.noise_size = self.units.size
        self.settings = {"log_std": (self.units.size,)}
        self.action_shape = (self.units.size,)

    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return normal(key, counter)

    def sample(self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor) -> tuple[Tensor, Tensor]:
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
    """The head for an action space. Raises InvalidInput for anything but Discrete, MultiDiscrete, MultiBinary and a
    one-piece float Box."""
    discrete = discrete_policy_head(space)
    if discrete is not None:
        return discrete
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return GaussianHead(space, device)
    raise InvalidInput(
        f"this policy acts in Discrete, MultiDiscrete, MultiBinary and float Box action spaces, not in {space}",
        reason="ACTION_SPACE_UNSUPPORTED",
    )
