"""Policies that follow action values: greedy, but for a share of uniformly random actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from podracer_core.errors import InvalidInput
from podracer_core.networks.action_head import FORBIDDEN, ActionHead, Settings
from podracer_core.random_numbers import uniform


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
