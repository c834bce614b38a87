"""Multilayer perceptrons whose layers normalize, with a leading axis of G networks.

StackedNormalized   each layer's inputs by batch statistics, as in CrossQ (Bhatt et al., 2024,
                    arXiv:1902.05605)
StackedLayerNorm    each hidden layer's outputs, row by row (Ba et al., 2016, arXiv:1607.06450)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from podracer_core.networks.stacked_mlp import mlp_shapes
from podracer_core.networks.stacked_parameters import uniform_fan_in
from podracer_core.networks.stacked_residual import ACTIVATIONS, BatchNorm, linear_of, norm_shapes
from podracer_core.random_numbers import initialization_keys

_EPSILON = 1e-3
_LAYER_EPSILON = 1e-5


def normalized_shapes(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one network's tensors. sizes: inputs, hidden sizes, outputs."""
    norms = [
        norm_shapes(f"layers.{layer}.norm", size, renormalized=True)
        for layer, size in enumerate(sizes[:-1])
    ]
    return {name: shape for shapes in (mlp_shapes(sizes), *norms) for name, shape in shapes.items()}


def layer_norm_shapes(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The same of a network of `StackedLayerNorm`."""
    norms = {
        f"layers.{layer}.norm.{part}": (1, size)
        for layer, size in enumerate(sizes[1:-1])
        for part in ("scale", "shift")
    }
    return mlp_shapes(sizes) | norms


class StackedNormalized:
    """Networks over tensors [G, …] by the names of `normalized_shapes`; weights are [G, in,
    out]."""

    def __init__(
        self, sizes: Sequence[int], activation: str, tensors: Mapping[str, Tensor]
    ) -> None:
        layers = [f"layers.{layer}" for layer in range(len(sizes) - 1)]
        self._tensors, self._activate = tensors, ACTIVATIONS[activation]()
        self.weights = tuple(tensors[f"{layer}.weight"] for layer in layers)
        self.biases = tuple(tensors[f"{layer}.bias"] for layer in layers)
        self._norms = [BatchNorm(tensors, f"{layer}.norm", _EPSILON) for layer in layers]

    def __call__(self, inputs: Tensor, *, by_batch: bool = False) -> Tensor:
        """inputs [G, B, in] -> [G, B, outputs]; `by_batch` as of `StackedResidual`."""
        hidden = inputs
        for layer, norm in enumerate(self._norms):
            rows = norm(self._activate(hidden) if layer else hidden, by_batch=by_batch)
            hidden = torch.baddbmm(self.biases[layer], rows, self.weights[layer])
        return hidden

    @torch.no_grad()
    def settle(self, wanted: Tensor) -> None:
        """Update the running statistics after a gradient step of the networks `wanted` bool [G]."""
        for norm in self._norms:
            norm.follow(wanted.view(-1, 1, 1))

    @torch.no_grad()
    def initialize(self, seeds: Tensor, identity: int) -> None:
        """Weights and biases evenly within 1 / sqrt(inputs) from each network's own seed int64
        [G]."""
        _initialize(self._tensors, self.weights, self.biases, seeds, identity)

    def module(self, group: int) -> nn.Module:
        """One of the networks for use with torch alone, its running statistics folded into the
        weights."""
        modules: list[nn.Module] = []
        for norm, stacked, bias in zip(self._norms, self.weights, self.biases, strict=True):
            factor, summand = norm.affine(group)
            weight = stacked[group].detach()
            modules += [
                linear_of(weight * factor.unsqueeze(1), bias[group, 0].detach() + summand @ weight)
            ]
            modules += [self._activate]
        return nn.Sequential(*modules[:-1])


class StackedLayerNorm:
    """Networks over tensors [G, …] by the names of `layer_norm_shapes`; weights are [G, in, out].

    Each hidden layer: linear, normalized to mean 0 and variance 1 over its outputs, scaled and
    shifted, activated."""

    def __init__(
        self, sizes: Sequence[int], activation: str, tensors: Mapping[str, Tensor]
    ) -> None:
        layers = [f"layers.{layer}" for layer in range(len(sizes) - 1)]
        self._tensors, self._activate = tensors, ACTIVATIONS[activation]()
        self.weights = tuple(tensors[f"{layer}.weight"] for layer in layers)
        self.biases = tuple(tensors[f"{layer}.bias"] for layer in layers)
        self._scales, self._shifts = (
            [tensors[f"{layer}.norm.{part}"] for layer in layers[:-1]]
            for part in ("scale", "shift")
        )

    def __call__(self, inputs: Tensor, *, by_batch: bool = False) -> Tensor:
        """inputs [G, B, in] -> [G, B, outputs]; the same whether or not `by_batch`."""
        hidden = inputs
        for layer, (scale, shift) in enumerate(zip(self._scales, self._shifts, strict=True)):
            rows = torch.baddbmm(self.biases[layer], hidden, self.weights[layer])
            rows = nn.functional.layer_norm(rows, rows.shape[-1:], eps=_LAYER_EPSILON)
            hidden = self._activate(rows * scale + shift)
        return torch.baddbmm(self.biases[-1], hidden, self.weights[-1])

    def settle(self, wanted: Tensor) -> None:
        """Do nothing after a gradient step: there are no running statistics."""

    @torch.no_grad()
    def initialize(self, seeds: Tensor, identity: int) -> None:
        """See `StackedNormalized.initialize`."""
        _initialize(self._tensors, self.weights, self.biases, seeds, identity)

    def module(self, group: int) -> nn.Module:
        """One of the networks for use with torch alone."""
        modules: list[nn.Module] = []
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            modules.append(linear_of(weight[group].detach(), bias[group, 0].detach()))
            if layer < len(self._scales):
                norm = nn.LayerNorm(weight.shape[2], eps=_LAYER_EPSILON)
                norm.weight.data.copy_(self._scales[layer][group, 0].detach())
                norm.bias.data.copy_(self._shifts[layer][group, 0].detach())
                modules += [norm, self._activate]
        return nn.Sequential(*modules)


def _initialize(
    tensors: Mapping[str, Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    seeds: Tensor,
    identity: int,
) -> None:
    for name, tensor in tensors.items():
        tensor.detach().fill_(1.0 if name.endswith(("scale", "variance")) else 0.0)
    for layer, (stacked, bias) in enumerate(zip(weights, biases, strict=True)):
        drawn, drawn_bias = uniform_fan_in(
            initialization_keys(seeds, identity, layer), *stacked.shape[1:]
        )
        stacked.copy_(drawn)
        bias.copy_(drawn_bias.unsqueeze(1))
