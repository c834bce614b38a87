"""Wide layers on a CPU: one network after the other through oneDNN.

`torch.bmm` in float32 goes to MKL, which on some processors uses half of what they can do: a
product of three times 256 took 330 µs there and 157 µs in oneDNN, on an AMD EPYC with AVX-512
(torch 2.13, one thread). A call takes one matrix, so this is a loop over networks, each of which is
long enough (over 30 µs) not to notice. `torch.nn.functional.linear` would not do: it goes to MKL
too. Without AVX-512 MKL is the faster one (360 and 388 µs on such an EPYC), and this is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _tanh(values: Tensor) -> Tensor:
    """tanh x = 2 sigmoid(2 x) - 1, in place. On a CPU this takes a fifth of the time of torch's own
    (57 and 304 µs for 131,072 values, torch 2.13, AVX-512, one thread), and is within 2e-7 of the
    truth where that is within 3e-8."""
    return (
        values.mul_(2).sigmoid_().mul_(2).sub_(1) if values.device.type == "cpu" else values.tanh_()
    )


@dataclass(frozen=True, slots=True)
class Activation:
    """A nonlinearity in place, and its gradient, in place, from its result (so the input need not
    be kept)."""

    name: str
    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]  # (gradient, result) -> gradient


ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("tanh", _tanh, lambda g, y: _aten.tanh_backward.grad_input(g, y, grad_input=g)),
        Activation(
            "relu",
            torch.relu_,
            lambda g, y: _aten.threshold_backward.grad_input(g, y, 0, grad_input=g),
        ),
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
    if not _IS_FASTER or inputs.device.type != "cpu" or inputs.dtype != torch.float32:
        return False
    return any(
        min(weight.shape[1:]) >= _LEAST_WIDTH
        and inputs.shape[1] * weight.shape[1] * weight.shape[2] >= _LEAST_PRODUCT
        for weight in weights
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of one network, as views that follow every change: weights [in, out], the same
    transposed, biases [out].

    Or where a backward pass writes their gradients.
    """

    weight: Tensor
    transposed: Tensor
    bias: Tensor


def single_layers(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[list[Layer]]:
    """The layers of each network of weights [G, in, out] and biases [G, 1, out]."""
    return [
        [
            Layer(weight.detach()[g], weight.detach()[g].t(), bias.detach()[g, 0])
            for weight, bias in zip(weights, biases, strict=True)
        ]
        for g in range(weights[0].shape[0])
    ]


def wide_forward(
    inputs: Tensor, networks: Sequence[Sequence[Layer]], activation: Activation
) -> list[list[Tensor]]:
    """inputs [G, B, in] -> of each network what goes into each layer and, last, what comes out, [B,
    _] each."""
    return [
        _results(rows, layers, activation)
        for rows, layers in zip(inputs.unbind(), networks, strict=True)
    ]


def wide_backward(
    activation: Activation,
    results: Sequence[Sequence[Tensor]],
    networks: Sequence[Sequence[Layer]],
    slope: Tensor,
    into: Sequence[Sequence[Layer]] | None,
    columns: slice | None,
) -> Tensor | None:
    """`results`: of each network what goes into each layer. The rest is as of
    `MLPPass.backward`."""
    input_slopes = []
    for g, (above, below, layers) in enumerate(zip(slope.unbind(), results, networks, strict=True)):
        for number in range(len(layers) - 1, -1, -1):
            if into is not None:
                _product(below[number].t(), above, out=into[g][number].weight)
                torch.sum(above, 0, out=into[g][number].bias)
            if number:
                above = activation.backward(
                    _product(above, layers[number].transposed), below[number]
                )
            elif columns is not None:
                input_slopes.append(_product(above, layers[0].transposed[:, columns]))
    return torch.stack(input_slopes) if columns is not None else None


def _results(inputs: Tensor, layers: Sequence[Layer], activation: Activation) -> list[Tensor]:
    """The inputs of each layer of a network, and the outputs of the last."""
    results = [inputs]
    for layer in layers[:-1]:
        results.append(_activated(results[-1], layer, activation))
    return [*results, torch.addmm(layers[-1].bias, results[-1], layers[-1].weight)]


def _activated(inputs: Tensor, layer: Layer, activation: Activation) -> Tensor:
    if min(layer.weight.shape) < _LEAST_WIDTH:
        return activation.forward(torch.addmm(layer.bias, inputs, layer.weight))
    fused = activation.name == _FUSED
    hidden: Tensor = _linear(
        inputs, layer.transposed, layer.bias, _FUSED if fused else "none", [], ""
    )
    return hidden if fused else activation.forward(hidden)


def _product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left [B, I] @ right [I, O]."""
    if min(*left.shape, right.shape[1]) < _LEAST_WIDTH:
        return torch.mm(left, right, out=out)
    product: Tensor = _linear(left, right.t(), None, "none", [], "")
    return product if out is None else out.copy_(product)


def _is_faster() -> bool:
    has_onednn = _linear is not None and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(has_onednn) and torch.backends.cpu.get_cpu_capability() == "AVX512"


_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_IS_FASTER = _is_faster()
