"""Multilayer perceptrons with a leading axis of G networks that never mix."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from podracer_core.errors import InvalidInput
from podracer_core.networks.wide_mlp import ACTIVATIONS, Activation, WideMLP, is_wide, wide_forward


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

    def __call__(self, inputs: Tensor) -> Tensor:
        """inputs [G, B, in] -> [G, B, out], differentiable once in the inputs and in the parameters."""
        activation, wide = ACTIVATIONS[self.activation], is_wide(inputs, self.weights)
        if torch.is_grad_enabled():
            function = WideMLP if wide else _Differentiable
            output: Tensor = function.apply(activation, inputs, *self.weights, *self.biases)  # type: ignore[no-untyped-call]
            return output
        if wide:
            return wide_forward(inputs, self.weights, self.biases, activation)
        hidden = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = ACTIVATIONS[self.activation].forward(torch.baddbmm(bias, hidden, weight))
        return torch.baddbmm(self.biases[-1], hidden, self.weights[-1])


class _Differentiable(torch.autograd.Function):
    """The whole network as one node of the graph, with buffers that go from one gradient step to the next.

    The chain of `baddbmm` and activation that autograd would build allocates each result and gradient anew. On a CPU
    this is about a quarter faster where the hidden layers outgrow the cache, and no slower where they do not.
    """

    @staticmethod
    def forward(ctx: Any, activation: Activation, inputs: Tensor, *parameters: Tensor) -> Tensor:
        layers = len(parameters) // 2
        weights, biases = parameters[:layers], parameters[layers:]
        results = [inputs]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            hidden = _buffers.take(bias, inputs.shape[1])
            results.append(activation.forward(torch.baddbmm(bias, results[-1], weight, out=hidden)))
        ctx.activation, ctx.layers = activation, layers
        ctx.save_for_backward(*results, *weights)
        return torch.baddbmm(biases[-1], results[-1], weights[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        results, weights = ctx.saved_tensors[: ctx.layers], ctx.saved_tensors[ctx.layers :]
        weight_gradients: list[Tensor | None] = []
        bias_gradients: list[Tensor | None] = []
        for layer in range(ctx.layers - 1, -1, -1):
            below = results[layer]
            learns = ctx.needs_input_grad[2 + layer]  # a critic that only shows an actor the way does not
            weight_gradients.insert(0, _inner_products(below, gradient) if learns else None)
            bias_gradients.insert(0, gradient.sum(1, keepdim=True) if learns else None)
            above, transposed = gradient, weights[layer].transpose(1, 2)
            if layer:
                gradient = torch.bmm(above, transposed, out=_buffers.take_like(below))
                ctx.activation.backward(gradient, below)
                _buffers.give(below)
            elif ctx.needs_input_grad[1]:
                gradient = torch.bmm(above, transposed)
            if layer < ctx.layers - 1:
                _buffers.give(above)
        return None, gradient if ctx.needs_input_grad[1] else None, *weight_gradients, *bias_gradients


def _inner_products(left: Tensor, right: Tensor) -> Tensor:
    """left^T right: [G, B, I], [G, B, O] -> [G, I, O]. The narrow side in front is up to three times faster."""
    if left.shape[2] <= right.shape[2]:
        return torch.bmm(left.transpose(1, 2), right)
    return torch.bmm(right.transpose(1, 2), left).transpose(1, 2)


# After so many buffers taken, those that lay free all the while are released.
_LIFETIME = 1024


class _Buffers(threading.local):
    """Memory for hidden layers that the last gradient step no longer needs; one pool a thread, and only on a CPU.

    Elsewhere torch keeps memory itself, and runs backward in another thread than forward: what one thread took, the
    other would gather.

    A buffer that is out belongs to one graph alone, so any number of forward passes may come before a backward pass.
    A graph that is dropped frees its buffers instead of giving them back.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
        self._unused: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}  # that lay free at the last release
        self._taken = 0

    def take(self, bias: Tensor, rows: int) -> Tensor:
        """[G, rows, out] for a layer with `bias` [G, 1, out]; what it holds is undefined."""
        return self.take_like(bias.detach().expand(-1, rows, -1))

    def take_like(self, example: Tensor) -> Tensor:
        """Of the same shape."""
        if example.device.type == "cpu":
            self._taken += 1
            if self._taken % _LIFETIME == 0:
                self._unused, self._free = self._free, {}
            for pool in (self._free, self._unused):
                if free := pool.get((example.shape, example.dtype)):
                    return free.pop()
        return torch.empty(example.shape, dtype=example.dtype, device=example.device)

    def give(self, buffer: Tensor) -> None:
        """Nobody reads it any more."""
        if buffer.device.type == "cpu":
            self._free.setdefault((buffer.shape, buffer.dtype), []).append(buffer.detach())


_buffers = _Buffers()
