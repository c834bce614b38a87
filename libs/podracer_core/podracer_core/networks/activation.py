"""What follows a hidden layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Activation:
    """A nonlinearity in place, and its gradient, in place, from its result (so the input need not be kept)."""

    name: str
    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]  # (gradient, result) -> gradient


ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("tanh", torch.tanh_, lambda g, y: _aten.tanh_backward.grad_input(g, y, grad_input=g)),
        Activation("relu", torch.relu_, lambda g, y: _aten.threshold_backward.grad_input(g, y, 0, grad_input=g)),
        Activation(
            "elu",
            torch.nn.functional.elu_,
            lambda g, y: _aten.elu_backward.grad_input(g, 1, 1, 1, True, y, grad_input=g),
        ),
    )
}
