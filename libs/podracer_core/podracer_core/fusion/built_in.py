"""The fusions that come with Podracer."""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.fusion.fusion import Fusion, Parameters, Stack
from podracer_core.fusion.state import column, sample_weights, weighted_mean


class Mean(Fusion):
    """The mean of all learners: local SGD (Stich, 2019, arXiv:1805.09767)."""

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        return _means(stack, stack.counted.double())


class Weighted(Fusion):
    """The mean weighted by samples: federated averaging (McMahan et al., 2017, arXiv:1602.05629,
    algorithm 1)."""

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        return _means(stack, sample_weights(stack.samples, stack.counted))


class Outer(Fusion):
    """Nesterov's momentum along the mean movement of the learners: DiLoCo (arXiv:2311.08105).

    The paper's values are a learning rate of 0.7 and a momentum of 0.9. A member that no learner
    counts keeps its velocity. A new lead begins with none."""

    _velocity: Parameters | None = None

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        velocity = self._velocity or {
            name: torch.zeros_like(tensor) for name, tensor in previous.items()
        }
        moves = stack.counted.any(0)
        fused: dict[str, Tensor] = {}
        following: dict[str, Tensor] = {}
        for name, mean in _means(stack, stack.counted.double()).items():
            fused[name], moved = outer_step(
                previous[name],
                mean,
                velocity[name],
                self.options.learning_rate,
                self.options.momentum,
            )
            following[name] = torch.where(column(moves, moved), moved, velocity[name])
        self._velocity = following
        return fused


def _means(stack: Stack, weight: Tensor) -> dict[str, Tensor]:
    return {name: weighted_mean(values, weight) for name, values in stack.parameters.items()}


def outer_step(
    previous: Tensor, mean: Tensor, velocity: Tensor, learning_rate: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """One step of stochastic gradient descent with momentum from `previous`; returns the new
    parameters and velocity.

    The outer gradient is the learners' mean movement, reversed: g = previous - mean. DiLoCo
    (Douillard et al., 2023, arXiv:2311.08105, algorithm 1) takes Nesterov's form, as
    torch.optim.SGD writes it:
        v <- momentum v + g,   theta = previous - learning_rate (g + momentum v).
    The mean is added to and not subtracted from what it came of, so that a learning rate of 1
    without momentum gives the mean itself, exactly: local SGD (Stich, 2019, arXiv:1805.09767). All
    tensors are of one shape, in float64."""
    gradient = previous - mean
    velocity = momentum * velocity + gradient
    return mean + (1.0 - learning_rate) * gradient - learning_rate * (momentum * velocity), velocity
