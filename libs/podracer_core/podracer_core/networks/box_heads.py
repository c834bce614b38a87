"""Policies in a Box of actions: a diagonal Gaussian for PPO and A2C, in the policy's units; for
off-policy algorithms a squashed Gaussian, and a deterministic one with noise, whose actions are
stored in units in which the box is [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from podracer_core.catalogue import NO_BOUND
from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import (
    ActionHead,
    Density,
    PolicyHead,
    Settings,
    discrete_policy_head,
)
from podracer_core.networks.stacked_network import observation_size
from podracer_core.random_numbers import derive_key, normal, uniform


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


_LOG_STD_LOW, _LOG_STD_HIGH = -20.0, 2.0
_SMOOTH_LOG_STD_LOW = -10.0
# Stored actions are taken back through tanh at most this close to the edge, where float32 has no
# more to tell.
_EDGE = 1.0 - 1e-6
_RANDOM_ACTIONS = 1


class BoxHead(ActionHead):
    """Base of both heads: with the probability `random_fraction` [M, 1] an action is uniformly
    random instead."""

    action_dtype = torch.float32

    def __init__(
        self,
        space: gymnasium.Space[Any],
        exploration: Exploration,
        device: torch.device | str = "cpu",
    ) -> None:
        """Raises InvalidInput unless `space` is a float Box with finite bounds."""
        if not isinstance(space, gymnasium.spaces.Box) or not np.issubdtype(
            space.dtype, np.floating
        ):
            raise InvalidInput(
                f"this policy acts in a float Box with finite bounds, not in {space}",
                reason="ACTION_SPACE_UNSUPPORTED",
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
        step = first_step.view(1, -1, 1, 1) + torch.arange(horizon, device=key.device).view(
            -1, 1, 1, 1
        )
        counter = step * size + torch.arange(size, device=key.device)
        return torch.cat(
            [explored, self.make_noise(derive_key(key, _RANDOM_ACTIONS).unsqueeze(-1), counter)], -1
        )

    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return uniform(key, counter)

    def explore(self, noise: Tensor, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """noise [M, B, noise_size] -> exploration noise [M, B, A], a random action [M, B, A], a
        number in [0, 1)."""
        explored, random, choice = noise.split_with_sizes(
            [self._exploration.size, self.units.size, 1], -1
        )
        return self._exploration.shape(explored, observation), 2 * random - 1, choice

    def to_environment(self, action: Tensor) -> Tensor:
        return self.units.to_environment(action)

    def greedy_module(self) -> nn.Module:
        return self.units.module(squash=True)


class DeterministicHead(BoxHead):
    """DDPG and TD3: tanh(output), plus noise of the standard deviation `noise_scale` [M, 1],
    clipped to the box."""

    def __init__(
        self,
        space: gymnasium.Space[Any],
        exploration: Exploration,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(space, exploration, device)
        self.settings = {"random_fraction": (1,), "noise_scale": (1,)}

    def sample(
        self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        explored, random, choice = self.explore(noise, observation)
        noisy = torch.addcmul(output.tanh(), settings["noise_scale"].unsqueeze(1), explored).clamp_(
            -1.0, 1.0
        )
        action = torch.where(choice < settings["random_fraction"].unsqueeze(1), random, noisy)
        return action, action.new_zeros(action.shape[:-1])

    def mode(self, output: Tensor) -> Tensor:
        return output.tanh()

    def log_prob(self, output: Tensor, settings: Settings, action: Tensor) -> Tensor:
        """Log-probability [M, B] of stored actions [M, B, A] under Normal(tanh(output),
        noise_scale)."""
        scale = settings["noise_scale"].unsqueeze(1)
        standardized = (action - output.tanh()) / scale
        return -(0.5 * standardized.square() + scale.log() + 0.5 * math.log(2 * math.pi)).sum(-1)


class SquashedGaussianHead(BoxHead):
    """SAC: tanh(mean + std * noise), mean and log std being the two halves of the output.

    Haarnoja et al., 2018 (arXiv:1812.05905), appendix C: log pi(a) = log N(u) - sum log(1 -
    tanh(u)^2)."""

    stochastic = True

    def __init__(
        self,
        space: gymnasium.Space[Any],
        exploration: Exploration,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(space, exploration, device)
        self.output_size = 2 * self.units.size

    def sample(
        self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        explored, random, choice = self.explore(noise, observation)
        mean, log_std = self._parameters(output)
        own = torch.addcmul(mean, log_std.exp(), explored).tanh()
        action = torch.where(choice < settings["random_fraction"].unsqueeze(1), random, own)
        return action, action.new_zeros(action.shape[:-1])

    def mode(self, output: Tensor) -> Tensor:
        return output[..., : self.units.size].tanh()

    def sample_with_log_prob(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """noise [M, B, A] standard normal -> action [M, B, A] and its log-probability [M, B], both
        differentiable in the output (the reparametrization trick)."""
        mean, log_std = self._parameters(output)
        raw = torch.addcmul(mean, log_std.exp(), noise)
        return raw.tanh(), _log_density(raw, log_std, noise)

    def sample_slope(
        self,
        output: Tensor,
        noise: Tensor,
        action: Tensor,
        action_slope: Tensor,
        log_prob_slope: Tensor,
    ) -> Tensor:
        """The derivative in the output of a loss that has these in the `action` [M, B, A] of
        `sample_with_log_prob` and in its log-probability [M, B]: with u = mean + std * noise and a
        = tanh u, d log pi / du = 2 a."""
        _, log_std = self._parameters(output)
        shared = log_prob_slope.unsqueeze(-1)
        mean_slope = torch.addcmul(action_slope, action, 2.0 * shared - action * action_slope)
        log_std_slope = mean_slope * log_std.exp() * noise - shared
        raw = output[..., self.units.size :]
        within = (raw >= _LOG_STD_LOW) & (raw <= _LOG_STD_HIGH)
        return torch.cat([mean_slope, torch.where(within, log_std_slope, 0.0)], -1)

    def log_prob(self, output: Tensor, settings: Settings, action: Tensor) -> Tensor:
        """Log-probability [M, B] of stored actions [M, B, A]."""
        mean, log_std = self._parameters(output)
        raw = action.clamp(-_EDGE, _EDGE).atanh()
        return _log_density(raw, log_std, (raw - mean) * log_std.neg().exp())

    def _parameters(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = output.chunk(2, -1)
        return mean, log_std.clamp(_LOG_STD_LOW, _LOG_STD_HIGH)


class SmoothGaussianHead(SquashedGaussianHead):
    """The same with log std = -10 + 6 (1 + tanh x), which has a slope everywhere: FlashSAC
    (arXiv:2604.04539)."""

    def _parameters(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = output.chunk(2, -1)
        return mean, _SMOOTH_LOG_STD_LOW + 0.5 * (_LOG_STD_HIGH - _SMOOTH_LOG_STD_LOW) * (
            1.0 + raw.tanh()
        )


def make_exploration(
    shared: Mapping[str, Any],
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
) -> Exploration:
    """The exploration of the hyperparameters `exploration` and `exploration_period`."""
    kind, period = shared["exploration"], shared["exploration_period"]
    return Exploration(
        kind,
        period,
        observation_size(observation_space),
        math.prod((0,) if action_space.shape is None else action_space.shape),
    )


def _log_density(raw: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Log-density [M, B] of tanh u, u = `raw` = mean + std * noise, all [M, B, A]: Σ log N(u) -
    log(1 - tanh(u)^2).

    The latter is 2 (log 2 - u - softplus(-2 u)), which does not lose its digits far from zero; half
    of the sum is added up here, and softplus(-2 u) = -2 softplus(u, beta=-2)."""
    half = torch.sub(raw, nn.functional.softplus(raw, beta=-2.0), alpha=2.0)
    half = torch.sub(half, log_std, alpha=0.5).addcmul(noise, noise, value=-0.25)
    return 2.0 * half.sum(-1) - raw.shape[-1] * (0.5 * math.log(2 * math.pi) + 2.0 * math.log(2.0))


ExplorationKind = Literal["independent", "correlated", "state_dependent", "repeated"]

# Repeated noise begins anew at each multiple of so many steps, so that nothing has to be
# remembered.
_STRETCH = 64
_LENGTHS = 2

# Older noise than this weighs less than a thousandth.
_FORGOTTEN = math.log(1000.0)


class Exploration:
    """Noise [M, E, A] for every step, from each environment's own stream of random numbers.

    Whatever the kind, each single number is standard normal, so a policy's density does not change.

    independent      anew at every step
    correlated       a stationary Ornstein-Uhlenbeck process (Uhlenbeck and Ornstein, 1930) with the
                     time constant `period` in steps: the weighted sum of the last steps' noise, so
                     nothing has to be remembered
    state_dependent  a random linear function of the observation that changes every `period` steps
                     (Rückstieß et al., 2008; Raffin et al., 2021, arXiv:2005.05719): the same state
                     gets the same noise
    repeated         the same noise for n steps, n <= `period` with a probability in proportion to
                     n^-2 (FlashSAC, arXiv:2604.04539)

    size   random numbers that `draw` gives for a step: A, or (obs + 1) * A for the matrix
    """

    def __init__(
        self, kind: ExplorationKind, period: int, observation_size: int, action_size: int
    ) -> None:
        self._kind, self._period, self._action_size = kind, period, action_size
        self.size = action_size * (observation_size + 1 if kind == "state_dependent" else 1)
        decay = math.exp(-1.0 / period)
        length = max(1, math.ceil(_FORGOTTEN * period)) if kind == "correlated" else 1
        weights = torch.tensor([decay**age for age in range(length)], dtype=torch.float64)
        self._weights = (weights / weights.square().sum().sqrt()).float()
        self._newest_last: dict[torch.device, Tensor] = {}  # the same, where it is used
        # keys, first period, and the matrices that they gave
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None

    def draw(self, key: Tensor, first_step: Tensor, horizon: int) -> Tensor:
        """key int64 [M, E], first_step int64 [M] -> [T, M, E, size]."""
        past = len(self._weights) - 1
        step = first_step + torch.arange(-past, horizon, device=key.device).view(-1, 1)  # [T, M]
        if self._kind == "state_dependent":
            period = step.div(self._period, rounding_mode="floor")
            # periods that so many steps can touch
            most = (horizon + self._period - 2) // self._period + 1
            matrices = self._matrices(key, period[0], most)
            return matrices[period - period[0], torch.arange(step.shape[1], device=key.device)]
        if self._kind == "repeated":
            return self._normal_at(key, self._last_change(key, step))
        noise = self._normal(key, step)
        if self._kind != "correlated":
            return noise
        if key.device not in self._newest_last:
            self._newest_last[key.device] = self._weights.flip(0).to(key.device)
        return (noise.unfold(0, past + 1, 1) * self._newest_last[key.device]).sum(-1)

    def _matrices(self, key: Tensor, first: Tensor, count: int) -> Tensor:
        """Matrices of the periods first [M] … first + count - 1, [count, M, E, size]. A CPU keeps
        the last ones: a rollout of one step would draw thousands of numbers again. On a GPU the
        comparison would wait for the device."""
        kept = self._kept if key.device.type == "cpu" else None
        if (
            kept
            and len(kept[2]) == count
            and torch.equal(kept[0], key)
            and torch.equal(kept[1], first)
        ):
            return kept[2]
        matrices = self._normal(key, first + torch.arange(count, device=key.device).view(-1, 1))
        if key.device.type == "cpu":
            self._kept = key.clone(), first, matrices
        return matrices

    def _last_change(self, key: Tensor, step: Tensor) -> Tensor:
        """key [M, E], step [T, M] -> the step at which each environment's noise was last drawn, [T,
        M, E]."""
        probability = torch.arange(1, self._period + 1, device=key.device).float().pow(-2)
        bounds = (probability / probability.sum()).cumsum(0)[:-1]
        stretch = step.div(_STRETCH, rounding_mode="floor").unsqueeze(-1)  # [T, M, 1]
        counter = stretch.unsqueeze(-1) * _STRETCH + torch.arange(_STRETCH, device=key.device)
        drawn = uniform(derive_key(key, _LENGTHS).unsqueeze(-1), counter)  # [T, M, E, _STRETCH]
        lengths = torch.bucketize(drawn, bounds, right=True) + 1
        starts = lengths.cumsum(-1) - lengths
        within = (step.unsqueeze(-1) - stretch * _STRETCH).unsqueeze(-1)
        return stretch * _STRETCH + torch.where(starts <= within, starts, 0).amax(-1)

    def _normal(self, key: Tensor, index: Tensor) -> Tensor:
        """key [M, E], index [T, M] of a block of `size` numbers -> [T, M, E, size]."""
        return self._normal_at(key, index.unsqueeze(-1))

    def _normal_at(self, key: Tensor, index: Tensor) -> Tensor:
        """The same with index [T, M, E]."""
        counter = index.unsqueeze(-1) * self.size + torch.arange(self.size, device=key.device)
        return normal(key.unsqueeze(-1), counter)

    def shape(self, noise: Tensor, observation: Tensor) -> Tensor:
        """Noise [M, B, A] of a step from the numbers of `draw` [M, B, size] and normalized
        observations [M, B, obs]."""
        if self._kind != "state_dependent":
            return noise
        matrix = noise.view(*noise.shape[:-1], -1, self._action_size)
        # The constant keeps the length above zero; dividing by it keeps every number standard
        # normal.
        features = torch.cat([observation, torch.ones_like(observation[..., :1])], -1)
        features = features / torch.linalg.vector_norm(features, dim=-1, keepdim=True)
        return torch.matmul(features.unsqueeze(-2), matrix).squeeze(-2)
