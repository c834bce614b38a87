"""Multilayer perceptrons with a leading axis of G networks that never mix."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from podracer_core.errors import InvalidInput
from podracer_core.networks.stacked_parameters import StackedParameters

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Activation:
    """A nonlinearity in place, and its gradient, in place, from its result (so the input need not be kept)."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]  # (gradient, result) -> gradient


ACTIVATIONS: dict[str, Activation] = {
    "tanh": Activation(torch.tanh_, lambda g, y: _aten.tanh_backward.grad_input(g, y, grad_input=g)),
    "relu": Activation(torch.relu_, lambda g, y: _aten.threshold_backward.grad_input(g, y, 0, grad_input=g)),
    "elu": Activation(
        torch.nn.functional.elu_, lambda g, y: _aten.elu_backward.grad_input(g, 1, 1, 1, True, y, grad_input=g)
    ),
}


def mlp_shapes(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one network's layers. sizes: inputs, hidden sizes, outputs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
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
        """inputs [G, B, in] -> [G, B, out], differentiable once in the inputs and in the parameters."""
        activation = ACTIVATIONS[self.activation]
        if torch.is_grad_enabled():
            return _Differentiable.apply(activation, inputs, *self.weights, *self.biases)  # type: ignore[no-any-return]
        return _forward(activation, inputs, self.weights, self.biases)[-1]


def _forward(
    activation: Activation, inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> list[Tensor]:
    """The result of every layer, after its activation."""
    results = [inputs]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        results.append(activation.forward(torch.baddbmm(bias, results[-1], weight)))
    return [*results[1:], torch.baddbmm(biases[-1], results[-1], weights[-1])]


class _Differentiable(torch.autograd.Function):
    """The whole network as one node of the graph.

    The chain of `baddbmm` and activation that autograd would build allocates every gradient anew, and on a CPU the
    time goes into fetching that memory: it takes twice as long as this backward pass, which works in place.
    """

    @staticmethod
    def forward(ctx: Any, activation: Activation, inputs: Tensor, *parameters: Tensor) -> Tensor:
        layers = len(parameters) // 2
        weights, biases = parameters[:layers], parameters[layers:]
        *hidden, output = _forward(activation, inputs, weights, biases)
        ctx.activation, ctx.layers = activation, layers
        ctx.save_for_backward(inputs, *hidden, *weights)
        return output

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        results, weights = ctx.saved_tensors[: ctx.layers], ctx.saved_tensors[ctx.layers :]
        weight_gradients: list[Tensor] = []
        bias_gradients: list[Tensor] = []
        for layer in range(ctx.layers - 1, -1, -1):
            below = results[layer]
            weight_gradients.insert(0, torch.bmm(below.transpose(1, 2), gradient))
            bias_gradients.insert(0, gradient.sum(1, keepdim=True))
            if layer == 0 and not ctx.needs_input_grad[1]:
                return None, None, *weight_gradients, *bias_gradients
            gradient = torch.bmm(gradient, weights[layer].transpose(1, 2))
            if layer:
                ctx.activation.backward(gradient, below)
        return None, gradient, *weight_gradients, *bias_gradients
