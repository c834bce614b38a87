"""Multilayer perceptrons with a leading axis of G networks that never mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.networks.stacked_parameters import StackedParameters

# In place: `baddbmm` has just made its result, and none of these derivatives needs the input.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh_, "relu": torch.relu_}


def mlp_shapes(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one network's layers. sizes: inputs, hidden sizes, outputs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (inputs, outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        shapes[f"layers.{layer}.weight"] = (inputs, outputs)
        shapes[f"layers.{layer}.bias"] = (1, outputs)
    return shapes


@dataclass(frozen=True, slots=True)
class StackedMLP:
    """`weights[l]` [G, in, out] and `biases[l]` [G, 1, out]; the activation follows every layer but the last."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str = "tanh"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InvalidInput(f"activation must be one of {sorted(ACTIVATIONS)}, not {self.activation!r}")

    @classmethod
    def of(cls, parameters: StackedParameters, layers: int, activation: str = "tanh") -> StackedMLP:
        """The network over parameters that were laid out by `mlp_shapes`; gradients flow into them."""
        names = [f"layers.{layer}" for layer in range(layers)]
        return cls(
            tuple(parameters[f"{name}.weight"] for name in names),
            tuple(parameters[f"{name}.bias"] for name in names),
            activation,
        )

    def every(self, start: int, step: int) -> StackedMLP:
        """The networks start, start + step, … as a view without gradients: it follows every change of this one."""
        return StackedMLP(
            tuple(weight.detach()[start::step] for weight in self.weights),
            tuple(bias.detach()[start::step] for bias in self.biases),
            self.activation,
        )

    def __call__(self, inputs: Tensor) -> Tensor:
        """inputs [G, B, in] -> [G, B, out]."""
        activation = ACTIVATIONS[self.activation]
        hidden = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = activation(torch.baddbmm(bias, hidden, weight))
        return torch.baddbmm(self.biases[-1], hidden, self.weights[-1])
