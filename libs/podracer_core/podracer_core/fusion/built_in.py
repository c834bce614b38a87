"""The fusions that come with Podracer."""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.fusion.fusion import Fusion, Parameters, Stack
from podracer_core.fusion.means import column, sample_weights, weighted_mean
from podracer_core.fusion.outer import outer_step

__all__ = ["Mean", "Outer", "Weighted"]


class Mean(Fusion):
    """Every learner weighs the same: local SGD (Stich, 2019, arXiv:1805.09767)."""

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        return _means(stack, stack.counted.double())


class Weighted(Fusion):
    """Each weighs as its samples: federated averaging (McMahan et al., 2017, arXiv:1602.05629, algorithm 1)."""

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        return _means(stack, sample_weights(stack.samples, stack.counted))


class Outer(Fusion):
    """Nesterov's momentum along the mean of what the learners have moved by: DiLoCo (arXiv:2311.08105).

    The paper's values are a learning rate of 0.7 and a momentum of 0.9. A member that no learner counts keeps its
    velocity. A new lead begins with none.
    """

    _velocity: Parameters | None = None

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        velocity = self._velocity or {name: torch.zeros_like(tensor) for name, tensor in previous.items()}
        moves = stack.counted.any(0)
        fused: dict[str, Tensor] = {}
        following: dict[str, Tensor] = {}
        for name, mean in _means(stack, stack.counted.double()).items():
            fused[name], moved = outer_step(
                previous[name], mean, velocity[name], self.options.learning_rate, self.options.momentum
            )
            following[name] = torch.where(column(moves, moved), moved, velocity[name])
        self._velocity = following
        return fused


def _means(stack: Stack, weight: Tensor) -> dict[str, Tensor]:
    return {name: weighted_mean(values, weight) for name, values in stack.parameters.items()}
