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


class ActionHead(ABC):
    """Sampling, log-probability and entropy of one family of distributions."""

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
    def log_prob_and_entropy(self, output: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of stored actions [M, B, *action_shape], and the entropy: both broadcastable to [M, B]."""

    @abstractmethod
    def to_environment(self, action: Tensor) -> Tensor:
        """A stored action [..., *action_shape] in the environment's own units and shape."""

    def cpu(self) -> ActionHead:
        """The same head on the CPU."""
        return self


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

    def log_prob_and_entropy(self, output: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = output.log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy

    def to_environment(self, action: Tensor) -> Tensor:
        return action


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
        return action, self._density(noise, log_std)

    def mode(self, output: Tensor) -> Tensor:
        return output

    def log_prob_and_entropy(self, output: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        standardized = (action - output) * (-log_std).exp().unsqueeze(1)
        entropy = log_std.sum(-1, keepdim=True) + 0.5 * self.output_size * math.log(2.0 * math.pi * math.e)
        return self._density(standardized, log_std), entropy

    def to_environment(self, action: Tensor) -> Tensor:
        scaled = torch.addcmul(self.offset, self.scale, action)
        return torch.minimum(torch.maximum(scaled, self.low), self.high).view(
            *action.shape[:-1], *self.environment_shape
        )

    def cpu(self) -> GaussianHead:
        return self if self.low.device.type == "cpu" else GaussianHead(self._space)

    def _density(self, standardized: Tensor, log_std: Tensor) -> Tensor:
        constant = 0.5 * self.output_size * math.log(2.0 * math.pi)
        return -0.5 * standardized.square().sum(-1) - (log_std.sum(-1, keepdim=True) + constant)


def make_action_head(space: gymnasium.Space[Any], device: torch.device | str = "cpu") -> ActionHead:
    """The head for an action space. Raises InvalidInput for anything but Discrete and a one-piece float Box."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return GaussianHead(space, device)
    raise InvalidInput(
        f"this policy acts in Discrete and float Box action spaces, not in {space}",
        reason="UNSUPPORTED_ACTION_SPACE",
    )
