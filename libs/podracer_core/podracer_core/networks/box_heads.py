"""Policies inside a bounded box for off-policy algorithms: a squashed Gaussian, and a deterministic one with noise.

Actions are stored in units in which the box is [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import ActionHead, Settings
from podracer_core.networks.box_units import BoxUnits
from podracer_core.networks.exploration import Exploration
from podracer_core.networks.stacked_network import observation_size
from podracer_core.random_numbers import derive_key, uniform

_LOG_STD_LOW, _LOG_STD_HIGH = -20.0, 2.0
# Stored actions are taken back through tanh at most this close to the edge, where float32 has no more to tell.
_EDGE = 1.0 - 1e-6
_RANDOM_ACTIONS = 1


class BoxHead(ActionHead):
    """What both have in common: with the probability `random_fraction` [M, 1] an action is uniformly random instead."""

    action_dtype = torch.float32

    def __init__(
        self, space: gymnasium.Space[Any], exploration: Exploration, device: torch.device | str = "cpu"
    ) -> None:
        """Raises InvalidInput unless `space` is a float Box with finite bounds."""
        if not isinstance(space, gymnasium.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise InvalidInput(
                f"this policy acts in a float Box with finite bounds, not in {space}", reason="ACTION_SPACE_UNSUPPORTED"
            )
        self.units = BoxUnits(space, device, bounded=True)
        self._exploration = exploration
        self.action_size = self.output_size = self.units.size
        self.action_shape = (self.units.size,)
        self.noise_size = exploration.size + self.units.size + 1
        self.settings = {"random_fraction": (1,)}

    def draw_noise(self, key: Tensor, first_step: Tensor, horizon: int) -> Tensor:
        explored = self._exploration.draw(key, first_step, horizon)
        size = self.units.size + 1
        step = first_step.view(1, -1, 1, 1) + torch.arange(horizon, device=key.device).view(-1, 1, 1, 1)
        counter = step * size + torch.arange(size, device=key.device)
        return torch.cat([explored, self.make_noise(derive_key(key, _RANDOM_ACTIONS).unsqueeze(-1), counter)], -1)

    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return uniform(key, counter)

    def explore(self, noise: Tensor, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """noise [M, B, noise_size] -> exploration noise [M, B, A], a random action [M, B, A], a number in [0, 1)."""
        explored, random, choice = noise.split_with_sizes([self._exploration.size, self.units.size, 1], -1)
        return self._exploration.shape(explored, observation), 2 * random - 1, choice

    def to_environment(self, action: Tensor) -> Tensor:
        return self.units.to_environment(action)

    def greedy_module(self) -> nn.Module:
        return self.units.module(squash=True)


class DeterministicHead(BoxHead):
    """DDPG and TD3: tanh(output), plus noise of the standard deviation `noise_scale` [M, 1], clipped to the box."""

    def __init__(
        self, space: gymnasium.Space[Any], exploration: Exploration, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(space, exploration, device)
        self.settings = {"random_fraction": (1,), "noise_scale": (1,)}

    def sample(self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor) -> tuple[Tensor, Tensor]:
        explored, random, choice = self.explore(noise, observation)
        noisy = torch.addcmul(output.tanh(), settings["noise_scale"].unsqueeze(1), explored).clamp_(-1.0, 1.0)
        action = torch.where(choice < settings["random_fraction"].unsqueeze(1), random, noisy)
        return action, action.new_zeros(action.shape[:-1])

    def mode(self, output: Tensor) -> Tensor:
        return output.tanh()

    def log_prob(self, output: Tensor, settings: Settings, action: Tensor) -> Tensor:
        """Of stored actions [M, B, A] under Normal(tanh(output), noise_scale), [M, B]."""
        scale = settings["noise_scale"].unsqueeze(1)
        standardized = (action - output.tanh()) / scale
        return -(0.5 * standardized.square() + scale.log() + 0.5 * math.log(2 * math.pi)).sum(-1)


class SquashedGaussianHead(BoxHead):
    """SAC: tanh(mean + std * noise), mean and log std being the two halves of the output.

    Haarnoja et al., 2018 (arXiv:1812.05905), appendix C: log pi(a) = log N(u) - sum log(1 - tanh(u)^2).
    """

    def __init__(
        self, space: gymnasium.Space[Any], exploration: Exploration, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(space, exploration, device)
        self.output_size = 2 * self.units.size

    def sample(self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor) -> tuple[Tensor, Tensor]:
        explored, random, choice = self.explore(noise, observation)
        mean, log_std = self._parameters(output)
        own = torch.addcmul(mean, log_std.exp(), explored).tanh()
        action = torch.where(choice < settings["random_fraction"].unsqueeze(1), random, own)
        return action, action.new_zeros(action.shape[:-1])

    def mode(self, output: Tensor) -> Tensor:
        return output[..., : self.units.size].tanh()

    def sample_with_log_prob(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """noise [M, B, A] standard normal -> action [M, B, A] and its log-probability [M, B], both differentiable in
        the output (the reparametrization trick)."""
        mean, log_std = self._parameters(output)
        raw = torch.addcmul(mean, log_std.exp(), noise)
        gaussian = -(0.5 * noise.square() + log_std + 0.5 * math.log(2 * math.pi))
        return raw.tanh(), (gaussian - _log_tanh_slope(raw)).sum(-1)

    def log_prob(self, output: Tensor, settings: Settings, action: Tensor) -> Tensor:
        """Of stored actions [M, B, A], [M, B]."""
        mean, log_std = self._parameters(output)
        raw = action.clamp(-_EDGE, _EDGE).atanh()
        standardized = (raw - mean) * log_std.neg().exp()
        gaussian = -(0.5 * standardized.square() + log_std + 0.5 * math.log(2 * math.pi))
        return (gaussian - _log_tanh_slope(raw)).sum(-1)

    def _parameters(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = output.chunk(2, -1)
        return mean, log_std.clamp(_LOG_STD_LOW, _LOG_STD_HIGH)


def make_exploration(
    shared: Mapping[str, Any], observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> Exploration:
    """From the hyperparameters `exploration` and `exploration_period`."""
    kind, period = shared["exploration"], shared["exploration_period"]
    return Exploration(
        kind,
        period,
        observation_size(observation_space),
        math.prod((0,) if action_space.shape is None else action_space.shape),
    )


def _log_tanh_slope(raw: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), written so that it does not lose its digits far from zero."""
    return 2.0 * (math.log(2.0) - raw - nn.functional.softplus(-2.0 * raw))
