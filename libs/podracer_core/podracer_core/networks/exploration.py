"""How exploration noise hangs together over time. Whatever the kind, each single number is standard normal, so a
policy's density does not change."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from podracer_core.random_numbers import normal

ExplorationKind = Literal["independent", "correlated", "state_dependent"]

# Older noise than this weighs less than a thousandth.
_FORGOTTEN = math.log(1000.0)


class Exploration:
    """Noise [M, E, A] for every step, from each environment's own stream of random numbers.

    independent      anew at every step
    correlated       a stationary Ornstein-Uhlenbeck process (Uhlenbeck and Ornstein, 1930) with the time constant
                     `period` in steps: the weighted sum of the last steps' noise, so nothing has to be remembered
    state_dependent  a random linear function of the observation that changes every `period` steps (Rückstieß et al.,
                     2008; Raffin et al., 2021, arXiv:2005.05719): the same state gets the same noise

    size   random numbers that `draw` gives for a step: A, or (obs + 1) * A for the matrix
    """

    def __init__(self, kind: ExplorationKind, period: int, observation_size: int, action_size: int) -> None:
        self._kind, self._period, self._action_size = kind, period, action_size
        self.size = action_size * (observation_size + 1 if kind == "state_dependent" else 1)
        decay = math.exp(-1.0 / period)
        length = max(1, math.ceil(_FORGOTTEN * period)) if kind == "correlated" else 1
        weights = torch.tensor([decay**age for age in range(length)], dtype=torch.float64)
        self._weights = (weights / weights.square().sum().sqrt()).float()
        self._newest_last: dict[torch.device, Tensor] = {}  # the same, where it is used
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None  # keys, first period, and the matrices that they gave

    def draw(self, key: Tensor, first_step: Tensor, horizon: int) -> Tensor:
        """key int64 [M, E], first_step int64 [M] -> [T, M, E, size]."""
        past = len(self._weights) - 1
        step = first_step + torch.arange(-past, horizon, device=key.device).view(-1, 1)  # [T, M]
        if self._kind == "state_dependent":
            period = step.div(self._period, rounding_mode="floor")
            most = (horizon + self._period - 2) // self._period + 1  # periods that so many steps can touch
            matrices = self._matrices(key, period[0], most)
            return matrices[period - period[0], torch.arange(step.shape[1], device=key.device)]
        noise = self._normal(key, step)
        if self._kind != "correlated":
            return noise
        if key.device not in self._newest_last:
            self._newest_last[key.device] = self._weights.flip(0).to(key.device)
        return (noise.unfold(0, past + 1, 1) * self._newest_last[key.device]).sum(-1)

    def _matrices(self, key: Tensor, first: Tensor, count: int) -> Tensor:
        """Those of the periods first [M] … first + count - 1, [count, M, E, size]. A CPU keeps the last ones: a rollout
        of one step would draw thousands of numbers that it had before. A look at what is kept would make a GPU wait."""
        kept = self._kept if key.device.type == "cpu" else None
        if kept and len(kept[2]) == count and torch.equal(kept[0], key) and torch.equal(kept[1], first):
            return kept[2]
        matrices = self._normal(key, first + torch.arange(count, device=key.device).view(-1, 1))
        if key.device.type == "cpu":
            self._kept = key.clone(), first, matrices
        return matrices

    def _normal(self, key: Tensor, index: Tensor) -> Tensor:
        """key [M, E], index [T, M] of a block of `size` numbers -> [T, M, E, size]."""
        counter = index[..., None, None] * self.size + torch.arange(self.size, device=key.device)
        return normal(key.unsqueeze(-1), counter)

    def shape(self, noise: Tensor, observation: Tensor) -> Tensor:
        """What `draw` gave for a step [M, B, size], observation [M, B, obs] normalized -> noise [M, B, A]."""
        if self._kind != "state_dependent":
            return noise
        matrix = noise.view(*noise.shape[:-1], -1, self._action_size)
        # The constant keeps the length above zero; dividing by it keeps every number standard normal.
        features = torch.cat([observation, torch.ones_like(observation[..., :1])], -1)
        features = features / torch.linalg.vector_norm(features, dim=-1, keepdim=True)
        return torch.matmul(features.unsqueeze(-2), matrix).squeeze(-2)
