"""Wide layers on a CPU: one network after the other through oneDNN.

`torch.bmm` in float32 goes to MKL, which on some processors uses half of what they can do: a product of three times 256
took 330 µs there and 157 µs in oneDNN, on an AMD EPYC with AVX-512 (torch 2.13, one thread). A call takes one matrix,
so this is a loop over networks, each of which is long enough (over 30 µs) not to notice. `torch.nn.functional.linear`
would not do: it goes to MKL too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_aten = torch.ops.aten


def _tanh(values: Tensor) -> Tensor:
    """tanh x = 2 sigmoid(2 x) - 1, in place. On a CPU this takes a fifth of the time of torch's own (57 and 304 µs for
    131,072 values, torch 2.13, AVX-512, one thread), and is within 2e-7 of the truth where that is within 3e-8."""
    return values.mul_(2).sigmoid_().mul_(2).sub_(1) if values.device.type == "cpu" else values.tanh_()


@dataclass(frozen=True, slots=True)
class Activation:
    """A nonlinearity in place, and its gradient, in place, from its result (so the input need not be kept)."""

    name: str
    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]  # (gradient, result) -> gradient


ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("tanh", _tanh, lambda g, y: _aten.tanh_backward.grad_input(g, y, grad_input=g)),
        Activation("relu", torch.relu_, lambda g, y: _aten.threshold_backward.grad_input(g, y, 0, grad_input=g)),
        Activation(
            "elu",
            torch.nn.functional.elu_,
            lambda g, y: _aten.elu_backward.grad_input(g, 1, 1, 1, True, y, grad_input=g),
        ),
    )
}


# Below this many multiplications oneDNN's start-up time outweighs its speed.
_LEAST_PRODUCT = 1 << 21
_LEAST_WIDTH = 128
# torch's name of what `StackedMLP` may call relu; others are applied afterwards.
_FUSED = "relu"


def is_wide(inputs: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether inputs [G, B, in] through weights [G, in, out] are faster here."""
    if inputs.device.type != "cpu" or inputs.dtype != torch.float32 or not _is_available():
        return False
    return any(
        min(weight.shape[1:]) >= _LEAST_WIDTH and inputs.shape[1] * weight.shape[1] * weight.shape[2] >= _LEAST_PRODUCT
        for weight in weights
    )


def wide_forward(inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: Activation) -> Tensor:
    """inputs [G, B, in] -> [G, B, out]."""
    return torch.stack([_layers(inputs[g], weights, biases, activation, g)[-1] for g in range(inputs.shape[0])])


class WideMLP(torch.autograd.Function):
    """All G networks as one node of the graph; the same as `StackedMLP`'s, network by network."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, inputs: Tensor, *parameters: Tensor) -> Tensor:
        layers = len(parameters) // 2
        weights, biases = parameters[:layers], parameters[layers:]
        ctx.results = [_layers(inputs[g], weights, biases, activation, g) for g in range(inputs.shape[0])]
        ctx.activation, ctx.weights = activation, weights
        return torch.stack([results.pop() for results in ctx.results])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, layers = ctx.weights, len(ctx.weights)
        learns, needs_input = ctx.needs_input_grad[2], ctx.needs_input_grad[1]
        weight_gradients = [torch.empty_like(weight) if learns else None for weight in weights]
        bias_gradients = [
            weight.new_empty(weight.shape[0], 1, weight.shape[2]) if learns else None for weight in weights
        ]
        input_gradients = []
        for g, results in enumerate(ctx.results):
            above = gradient[g]
            for layer in range(layers - 1, -1, -1):
                below = results[layer]
                weight_gradient, bias_gradient = weight_gradients[layer], bias_gradients[layer]
                if weight_gradient is not None and bias_gradient is not None:
                    weight_gradient[g] = _product(below.t(), above)
                    torch.sum(above, 0, out=bias_gradient[g, 0])
                if layer or needs_input:
                    above = _product(above, weights[layer][g].t())
                if layer:
                    above = ctx.activation.backward(above, below)
            input_gradients.append(above)
        ctx.results = None
        return None, torch.stack(input_gradients) if needs_input else None, *weight_gradients, *bias_gradients


def _layers(
    inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: Activation, g: int
) -> list[Tensor]:
    """What goes into each layer of network g, and what comes out of the last."""
    results = [inputs]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        results.append(_activated(results[-1], weight[g], bias[g, 0], activation))
    return [*results, torch.addmm(biases[-1][g, 0], results[-1], weights[-1][g])]


def _activated(inputs: Tensor, weight: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    if min(weight.shape) < _LEAST_WIDTH:
        return activation.forward(torch.addmm(bias, inputs, weight))
    fused = activation.name == _FUSED
    hidden: Tensor = _linear(inputs, weight.t(), bias, _FUSED if fused else "none", [], "")
    return hidden if fused else activation.forward(hidden)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left [B, I] @ right [I, O]."""
    if min(*left.shape, right.shape[1]) < _LEAST_WIDTH:
        return torch.mm(left, right)
    product: Tensor = _linear(left, right.t(), None, "none", [], "")
    return product


def _is_available() -> bool:
    return _linear is not None and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
