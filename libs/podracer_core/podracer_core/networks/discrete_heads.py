"""Policies that choose: one of n actions, one of several in every dimension, or a set of
switches."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import FORBIDDEN, Density, PolicyHead, Settings
from podracer_core.random_numbers import uniform


def gumbel(key: Tensor, counter: Tensor) -> Tensor:
    """Gumbel noise. The shift by half a step keeps both logarithms finite."""
    return uniform(key, counter).add_(2.0**-25).log_().neg_().log_().neg_()


class CategoricalDensity(Density):
    """See `CategoricalHead`."""

    def __init__(self, output: Tensor, action: Tensor) -> None:
        self._log_probs = output.log_softmax(-1)
        self._probs = self._log_probs.exp()
        self._action = action.unsqueeze(-1)
        self.log_prob = self._log_probs.gather(-1, self._action).squeeze(-1)
        self.entropy = -(self._probs * self._log_probs).sum(-1)

    def gradient(
        self, log_prob_gradient: Tensor, entropy_gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        # d log p(a) / d output_j = [j = a] - p_j;  d H / d output_j = -p_j (log p_j + H)
        chosen = log_prob_gradient.unsqueeze(-1)
        surprise = self._log_probs + self.entropy.unsqueeze(-1)
        gradient = (
            torch.addcmul(chosen, entropy_gradient.unsqueeze(-1), surprise).mul_(self._probs).neg_()
        )
        return gradient.scatter_add_(-1, self._action, chosen), log_prob_gradient.new_empty(
            gradient.shape[0], 0
        )


class CategoricalHead(PolicyHead):
    """Discrete actions with probabilities softmax(output). Stored as 0 … n-1; the environment adds
    `start`."""

    action_shape = ()
    action_dtype = torch.int64

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        self.output_size = self.noise_size = int(space.n)
        self.settings = {}
        self.start = int(space.start)

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> CategoricalHead:
        """The head of a space that should be Discrete; raises InvalidInput if it is not."""
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise InvalidInput(
                f"this policy needs a Discrete space, not {space}",
                reason="ACTION_SPACE_UNSUPPORTED",
            )
        return cls(space)

    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return gumbel(key, counter)

    def sample(
        self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        # Gumbel-max trick (Gumbel, 1954): argmax(logits + noise) is distributed as softmax(logits).
        action = (output + noise).argmax(-1)
        log_prob = output.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return action, log_prob

    def mode(self, output: Tensor) -> Tensor:
        return output.argmax(-1)

    def density(self, output: Tensor, settings: Settings, action: Tensor) -> Density:
        return CategoricalDensity(output, action)

    def allow(self, output: Tensor, action_mask: Tensor) -> Tensor:
        return output.masked_fill(~action_mask, FORBIDDEN)

    def greedy_module(self) -> nn.Module:
        return GreedyChoice([self.output_size], [self.start], single=True)


class MultiCategoricalDensity(Density):
    """Independent choices: see `MultiCategoricalHead`."""

    def __init__(self, output: Tensor, action: Tensor, sizes: list[int]) -> None:
        self._parts = [
            CategoricalDensity(part, action[..., dimension])
            for dimension, part in enumerate(output.split_with_sizes(sizes, -1))
        ]
        self.log_prob = torch.stack([part.log_prob for part in self._parts]).sum(0)
        self.entropy = torch.stack([part.entropy for part in self._parts]).sum(0)

    def gradient(
        self, log_prob_gradient: Tensor, entropy_gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        gradients = [part.gradient(log_prob_gradient, entropy_gradient)[0] for part in self._parts]
        return torch.cat(gradients, -1), log_prob_gradient.new_empty(log_prob_gradient.shape[0], 0)


class MultiCategoricalHead(PolicyHead):
    """MultiDiscrete actions: dimension j is chosen by a softmax over its own nvec[j] outputs,
    stored as 0 … nvec[j]-1.

    The environment adds `start`.
    """

    action_dtype = torch.int64

    def __init__(self, space: gymnasium.spaces.MultiDiscrete) -> None:
        self.sizes = [int(size) for size in space.nvec]
        self._starts = [int(start) for start in space.start]
        self.output_size = self.noise_size = sum(self.sizes)
        self.action_shape = (len(self.sizes),)
        self.settings = {}

    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return gumbel(key, counter)

    def sample(
        self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        action = self.mode(output + noise)
        return action, self.density(output, settings, action).log_prob

    def mode(self, output: Tensor) -> Tensor:
        return torch.stack(
            [part.argmax(-1) for part in output.split_with_sizes(self.sizes, -1)], -1
        )

    def density(self, output: Tensor, settings: Settings, action: Tensor) -> Density:
        return MultiCategoricalDensity(output, action, self.sizes)

    def allow(self, output: Tensor, action_mask: Tensor) -> Tensor:
        return output.masked_fill(~action_mask, FORBIDDEN)

    def greedy_module(self) -> nn.Module:
        return GreedyChoice(self.sizes, self._starts, single=False)


class BernoulliDensity(Density):
    """Independent switches: see `BernoulliHead`."""

    def __init__(self, output: Tensor, action: Tensor) -> None:
        self._probability = output.sigmoid()
        self._output, self._action = output, action.to(output.dtype)
        # log p(1) = -softplus(-x), log p(0) = -softplus(x)
        self.log_prob = -nn.functional.softplus((1 - 2 * self._action) * output).sum(-1)
        self.entropy = (nn.functional.softplus(output) - output * self._probability).sum(-1)

    def gradient(
        self, log_prob_gradient: Tensor, entropy_gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        # d log p(a) / dx = a - p;  d H / dx = -x p (1 - p)
        slope = self._probability * (1 - self._probability)
        gradient = log_prob_gradient.unsqueeze(-1) * (self._action - self._probability)
        gradient = gradient - entropy_gradient.unsqueeze(-1) * self._output * slope
        return gradient, log_prob_gradient.new_empty(gradient.shape[0], 0)


class BernoulliHead(PolicyHead):
    """MultiBinary actions: switch j is on with the probability sigmoid(output[j])."""

    action_dtype = torch.int64

    def __init__(self, space: gymnasium.spaces.MultiBinary) -> None:
        (size,) = space.shape
        self.output_size = self.noise_size = size
        self.action_shape = (size,)
        self.settings = {}

    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return uniform(key, counter)

    def sample(
        self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        action = (noise < output.sigmoid()).long()
        return action, BernoulliDensity(output, action).log_prob

    def mode(self, output: Tensor) -> Tensor:
        return (output > 0).long()

    def density(self, output: Tensor, settings: Settings, action: Tensor) -> Density:
        return BernoulliDensity(output, action)

    def greedy_module(self) -> nn.Module:
        return GreedySwitches()


class GreedyChoice(nn.Module):
    """output [B, sum of sizes] -> the most probable choices, [B] for a single one, else [B, k]."""

    def __init__(self, sizes: list[int], starts: list[int], *, single: bool) -> None:
        super().__init__()
        self._sizes, self._starts, self._single = sizes, starts, single

    def forward(self, output: Tensor) -> Tensor:
        """See the class."""
        chosen = [
            part.argmax(-1) + start
            for part, start in zip(
                output.split_with_sizes(self._sizes, -1), self._starts, strict=True
            )
        ]
        return chosen[0] if self._single else torch.stack(chosen, -1)


class GreedySwitches(nn.Module):
    """output [B, k] -> 1 where a switch is more likely on than off, int64 [B, k]."""

    def forward(self, output: Tensor) -> Tensor:
        """See the class."""
        return (output > 0).long()


def discrete_policy_head(space: gymnasium.Space[Any]) -> PolicyHead | None:
    """The head for a Discrete, MultiDiscrete or MultiBinary space (vectors of these), None for
    another."""
    match space:
        case gymnasium.spaces.Discrete():
            return CategoricalHead(space)
        case gymnasium.spaces.MultiDiscrete() if len(space.shape) == 1:
            return MultiCategoricalHead(space)
        case gymnasium.spaces.MultiBinary() if len(space.shape) == 1:
            return BernoulliHead(space)
        case _:
            return None
