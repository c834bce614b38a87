"""What a policy's outputs mean: a categorical choice, or a diagonal Gaussian over a box.

Every function is batched and keeps the member axis in front. `output` is the last layer's [M, B, output_size],
`log_std` [M, A] belongs to the Gaussian and is ignored by the categorical head.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import normal, uniform


class Density(ABC):
    """log pi(action) and the entropy of pi, [M, B] each, and what flows back from them.

    The derivatives are written out: autograd over a dozen operations on small tensors would take longer than the
    network itself. Tests compare them with autograd.
    """

    log_prob: Tensor
    entropy: Tensor

    @abstractmethod
    def gradient(self, log_prob_gradient: Tensor, entropy_gradient: Tensor) -> tuple[Tensor, Tensor]:
        """From the loss's derivatives in log_prob and entropy, [M, B]: those in output [M, B, _] and log_std [M, A]."""


class ActionHead(ABC):
    """Sampling and densities of one family of distributions."""

    output_size: int
    log_std_size: int
    noise_size: int  # random numbers an action takes
    action_shape: tuple[int, ...]  # of one action as it is stored, after [M, B]
    action_dtype: torch.dtype

    @abstractmethod
    def draw_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        """What `sample` consumes, of the broadcast shape of key and counter (whose last axis is `noise_size`)."""

    @abstractmethod
    def sample(self, output: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """noise [M, B, noise_size] -> action [M, B, *action_shape] and its log-probability [M, B]."""

    @abstractmethod
    def mode(self, output: Tensor) -> Tensor:
        """The greedy action [M, B, *action_shape]."""

    @abstractmethod
    def density(self, output: Tensor, log_std: Tensor, action: Tensor) -> Density:
        """Of stored actions [M, B, *action_shape]."""

    @abstractmethod
    def to_environment(self, action: Tensor) -> Tensor:
        """A stored action [..., *action_shape] in the environment's own units and shape."""

    def cpu(self) -> ActionHead:
        """The same head on the CPU."""
        return self


class CategoricalDensity(Density):
    """See `CategoricalHead`."""

    def __init__(self, output: Tensor, action: Tensor) -> None:
        self._log_probs = output.log_softmax(-1)
        self._probs = self._log_probs.exp()
        self._action = action.unsqueeze(-1)
        self.log_prob = self._log_probs.gather(-1, self._action).squeeze(-1)
        self.entropy = -(self._probs * self._log_probs).sum(-1)

    def gradient(self, log_prob_gradient: Tensor, entropy_gradient: Tensor) -> tuple[Tensor, Tensor]:
        # d log p(a) / d output_j = [j = a] - p_j;  d H / d output_j = -p_j (log p_j + H)
        chosen = log_prob_gradient.unsqueeze(-1)
        surprise = self._log_probs + self.entropy.unsqueeze(-1)
        gradient = torch.addcmul(chosen, entropy_gradient.unsqueeze(-1), surprise).mul_(self._probs).neg_()
        return gradient.scatter_add_(-1, self._action, chosen), log_prob_gradient.new_empty(gradient.shape[0], 0)


class CategoricalHead(ActionHead):
    """Discrete actions with probabilities softmax(output). Stored as 0 … n-1; the environment adds `start`."""

    log_std_size = 0
    action_shape = ()
    action_dtype = torch.int64

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        self.output_size = self.noise_size = int(space.n)
        self.start = int(space.start)

    def draw_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        # Gumbel noise. The shift by half a step keeps both logarithms finite.
        return uniform(key, counter).add_(2.0**-25).log_().neg_().log_().neg_()

    def sample(self, output: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        # Gumbel-max trick (Gumbel, 1954): argmax(logits + noise) is distributed as softmax(logits).
        action = (output + noise).argmax(-1)
        log_prob = output.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return action, log_prob

    def mode(self, output: Tensor) -> Tensor:
        return output.argmax(-1)

    def density(self, output: Tensor, log_std: Tensor, action: Tensor) -> Density:
        return CategoricalDensity(output, action)

    def to_environment(self, action: Tensor) -> Tensor:
        return action


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


class GaussianHead(ActionHead):
    """Box actions: mean = output, a standard deviation that does not depend on the state, independent dimensions.

    The policy works in units in which the box is [-1, 1] (dimensions without two finite bounds keep their own). The
    stored action is the raw sample and its log-probability the raw density; only `to_environment` clips it. So the
    likelihood ratio is exact, and nothing is lost where the box ends.
    """

    action_dtype = torch.float32

    def __init__(self, space: gymnasium.spaces.Box, device: torch.device | str = "cpu") -> None:
        self._space = space
        self.environment_shape = space.shape
        size = math.prod(space.shape)
        self.output_size = self.log_std_size = self.noise_size = size
        self.action_shape = (size,)
        low = np.asarray(space.low, np.float64).reshape(-1)
        high = np.asarray(space.high, np.float64).reshape(-1)
        bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore"):
            scale = np.where(bounded, (high - low) / 2, 1.0)
            offset = np.where(bounded, (high + low) / 2, 0.0)

        def constant(values: np.ndarray[Any, Any]) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=device)

        self.low, self.high, self.scale, self.offset = map(constant, (low, high, scale, offset))

    def draw_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return normal(key, counter)

    def sample(self, output: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        action = torch.addcmul(output, log_std.exp().unsqueeze(1), noise)
        return action, GaussianDensity(output, log_std, action).log_prob

    def mode(self, output: Tensor) -> Tensor:
        return output

    def density(self, output: Tensor, log_std: Tensor, action: Tensor) -> Density:
        return GaussianDensity(output, log_std, action)

    def to_environment(self, action: Tensor) -> Tensor:
        scaled = torch.addcmul(self.offset, self.scale, action)
        clipped = torch.minimum(torch.maximum(scaled, self.low), self.high)
        return clipped.view(*action.shape[:-1], *self.environment_shape)

    def cpu(self) -> GaussianHead:
        return self if self.low.device.type == "cpu" else GaussianHead(self._space)


def make_action_head(space: gymnasium.Space[Any], device: torch.device | str = "cpu") -> ActionHead:
    """The head for an action space. Raises InvalidInput for anything but Discrete and a one-piece float Box."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return GaussianHead(space, device)
    raise InvalidInput(
        f"this policy acts in Discrete and float Box action spaces, not in {space}",
        reason="ACTION_SPACE_UNSUPPORTED",
    )
