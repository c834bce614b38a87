"""The optimizer around the learners' own: it steps along what they agree on."""

from __future__ import annotations

from torch import Tensor

__all__ = ["outer_step"]


def outer_step(
    previous: Tensor, mean: Tensor, velocity: Tensor, learning_rate: float, momentum: float, *, nesterov: bool = True
) -> tuple[Tensor, Tensor]:
    """One step of stochastic gradient descent with momentum from `previous`; returns where it leads, and the velocity.

    The outer gradient is what the learners have moved by, backwards: g = previous - mean. DiLoCo (Douillard et al.,
    2023, arXiv:2311.08105, algorithm 1) takes Nesterov's form, as torch.optim.SGD writes it:
        v <- momentum v + g,   theta = previous - learning_rate (g + momentum v),
    and without `nesterov` theta = previous - learning_rate v.
    The mean is added to and not subtracted from what it came of, so that a learning rate of 1 without momentum gives
    the mean itself, exactly: local SGD (Stich, 2019, arXiv:1805.09767). All tensors are of one shape, in float64.
    """
    gradient = previous - mean
    velocity = momentum * velocity + gradient
    push = momentum * velocity if nesterov else velocity - gradient
    return mean + (1.0 - learning_rate) * gradient - learning_rate * push, velocity
