"""The meaning of a policy's outputs: the interface of all families of distributions, and the
families that choose: one of n actions, one of several in every dimension, a set of switches, or by
action values, greedy but for a share of uniformly random actions.

Every function is batched and keeps the member axis in front. `output` is the last layer's [M, B,
output_size], `settings` are tensors [M, …] that belong to the policy but not to its network
(`log_std`, `random_fraction`, …)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor, nn

from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import uniform

Settings = Mapping[str, Tensor]

# A logit that stands for "never": finite, so that zero times it is zero.
FORBIDDEN = -1e8


class Density(ABC):
    """log pi(action) and the entropy of pi, [M, B] each, and what flows back from them.

    The derivatives are written out: autograd over a dozen operations on small tensors would take
    longer than the network itself. Tests compare them with autograd."""

    log_prob: Tensor
    entropy: Tensor

    @abstractmethod
    def gradient(
        self, log_prob_gradient: Tensor, entropy_gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss's derivatives in output [M, B, _] and log_std [M, A], from those in log_prob and
        entropy, [M, B]."""


class ActionHead(ABC):
    """Sampling from one family of distributions, and its most probable action.

    settings        name -> shape of one member's tensor
    noise_size      random numbers an action takes
    action_shape    of one action as it is stored, after [M, B]
    stochastic      whether `sample` draws from the policy itself, not a greedy action with noise
                    for exploration
    """

    stochastic: ClassVar[bool] = False

    output_size: int
    settings: Mapping[str, tuple[int, ...]]
    noise_size: int
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    def draw_noise(self, key: Tensor, first_step: Tensor, horizon: int) -> Tensor:
        """The noise of `sample` over `horizon` steps: key int64 [M, E], first_step int64 [M] -> [T,
        M, E, noise_size].

        Step t of member m uses the numbers (first_step[m] + t) * noise_size … of its environments'
        streams."""
        step = first_step.view(1, -1, 1, 1) + torch.arange(horizon, device=key.device).view(
            -1, 1, 1, 1
        )
        counter = step * self.noise_size + torch.arange(self.noise_size, device=key.device)
        return self.make_noise(key.unsqueeze(-1), counter)

    @abstractmethod
    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        """Random numbers of the broadcast shape of key and counter (whose last axis is
        `noise_size`)."""

    @abstractmethod
    def sample(
        self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        """noise [M, B, noise_size], observation [M, B, obs] normalized -> action [M, B,
        *action_shape] and its log-probability [M, B] (0 where the algorithm has no use for it)."""

    @abstractmethod
    def mode(self, output: Tensor) -> Tensor:
        """The greedy action [M, B, *action_shape]."""

    def to_environment(self, action: Tensor) -> Tensor:
        """A stored action [..., *action_shape] in the environment's own units and shape; by default
        as it is."""
        return action

    @abstractmethod
    def greedy_module(self) -> nn.Module:
        """A module of torch alone: output [B, output_size] -> the greedy action as a user's
        environment takes it."""

    def combine(self, output: Tensor) -> Tensor:
        """The outputs of a member's N networks as one: [M, N, B, output_size] -> [M, B, _]. Only
        the first counts."""
        return output[:, 0]

    def allow(self, output: Tensor, action_mask: Tensor) -> Tensor:
        """Outputs under which only actions of `action_mask` [M, B, n] bool are chosen."""
        raise NotImplementedError(f"{type(self).__name__} knows no action masks")


class PolicyHead(ActionHead):
    """A head whose densities a policy gradient needs."""

    stochastic = True

    @property
    def log_std_size(self) -> int:
        """A: numbers in a member's `log_std`, 0 where there is none."""
        return self.settings.get("log_std", (0,))[0]

    @abstractmethod
    def density(self, output: Tensor, settings: Settings, action: Tensor) -> Density:
        """Log-probability and entropy of stored actions [M, B, *action_shape]."""


def dueling_values(output: Tensor) -> Tensor:
    """Wang et al., 2016 (arXiv:1511.06581), equation 9: Q = V + A - mean A; [..., 1 + n] -> [...,
    n]."""
    value, advantage = output[..., :1], output[..., 1:]
    return value + advantage - advantage.mean(-1, keepdim=True)


def _values(output: Tensor, dueling: bool, quantiles: int) -> Tensor:
    if dueling:
        return dueling_values(output)
    return output if quantiles == 1 else torch.unflatten(output, -1, (-1, quantiles)).mean(-1)


class ValueHead(ActionHead):
    """Discrete actions by the smallest of N networks' values Q(s, a); `random_fraction` [M, 1] of
    them are random.

    A network's output is Q [n], or with `dueling` V and the advantages A [1 + n], or K `quantiles`
    of each action's return [n * K], of which Q is the mean."""

    action_shape = ()
    action_dtype = torch.int64
    noise_size = 2

    def __init__(self, space: gymnasium.Space[Any], *, dueling: bool, quantiles: int = 1) -> None:
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise InvalidInput(
                f"action values need a Discrete space, not {space}",
                reason="ACTION_SPACE_UNSUPPORTED",
            )
        self.actions, self.dueling, self.start = int(space.n), dueling, int(space.start)
        self.output_size = self.actions * quantiles + (1 if dueling else 0)
        self._quantiles = quantiles
        self.settings = {"random_fraction": (1,)}

    def values(self, output: Tensor) -> Tensor:
        """The action values of each network: [..., output_size] -> [..., n]."""
        return _values(output, self.dueling, self._quantiles)

    def combine(self, output: Tensor) -> Tensor:
        return self.values(output).amin(1)

    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return uniform(key, counter)

    def sample(
        self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        choice, which = noise.unbind(-1)
        allowed = ~(output <= FORBIDDEN / 2)  # of a broken member too, whose values are NaN
        # The k-th allowed action, k drawn evenly.
        place = (which * allowed.sum(-1)).floor().unsqueeze(-1)
        random = (allowed.cumsum(-1) <= place).sum(-1)
        action = torch.where(choice < settings["random_fraction"], random, output.argmax(-1))
        return action, noise.new_zeros(action.shape)

    def mode(self, output: Tensor) -> Tensor:
        return output.argmax(-1)

    def allow(self, output: Tensor, action_mask: Tensor) -> Tensor:
        return output.masked_fill(~action_mask, FORBIDDEN)

    def greedy_module(self) -> nn.Module:
        return _Greedy(self.dueling, self.start, self._quantiles)


class _Greedy(nn.Module):
    """outputs [N, B, output_size] of N networks, or [B, output_size] of one -> the greedy action,
    int64 [B]."""

    def __init__(self, dueling: bool, start: int, quantiles: int) -> None:
        super().__init__()
        self._dueling, self._start, self._quantiles = dueling, start, quantiles

    def forward(self, output: Tensor) -> Tensor:
        values = _values(output, self._dueling, self._quantiles)
        if values.dim() == 3:
            values = values.amin(0)
        return values.argmax(-1) + self._start


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


class _ChoiceHead(PolicyHead):
    """Choices by the Gumbel-max trick (Gumbel, 1954): argmax(logits + noise) is distributed as
    softmax(logits)."""

    action_dtype = torch.int64

    def make_noise(self, key: Tensor, counter: Tensor) -> Tensor:
        return gumbel(key, counter)

    def allow(self, output: Tensor, action_mask: Tensor) -> Tensor:
        return output.masked_fill(~action_mask, FORBIDDEN)


class CategoricalHead(_ChoiceHead):
    """Discrete actions with probabilities softmax(output). Stored as 0 … n-1; the environment adds
    `start`."""

    action_shape = ()

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

    def sample(
        self, output: Tensor, settings: Settings, noise: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        action = (output + noise).argmax(-1)
        log_prob = output.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return action, log_prob

    def mode(self, output: Tensor) -> Tensor:
        return output.argmax(-1)

    def density(self, output: Tensor, settings: Settings, action: Tensor) -> Density:
        return CategoricalDensity(output, action)

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


class MultiCategoricalHead(_ChoiceHead):
    """MultiDiscrete actions: dimension j is chosen by a softmax over its own nvec[j] outputs,
    stored as 0 … nvec[j]-1.

    The environment adds `start`.
    """

    def __init__(self, space: gymnasium.spaces.MultiDiscrete) -> None:
        self.sizes = [int(size) for size in space.nvec]
        self._starts = [int(start) for start in space.start]
        self.output_size = self.noise_size = sum(self.sizes)
        self.action_shape = (len(self.sizes),)
        self.settings = {}

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
