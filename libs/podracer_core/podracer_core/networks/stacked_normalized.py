"""CrossQ's networks (Bhatt et al., 2024, arXiv:1902.05605), with a leading axis: each layer's inputs normalized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from podracer_core.networks.stacked_mlp import mlp_shapes
from podracer_core.networks.stacked_parameters import uniform_fan_in
from podracer_core.networks.stacked_residual import ACTIVATIONS, BatchNorm, linear_of, norm_shapes
from podracer_core.random_numbers import initialization_keys

_EPSILON = 1e-3


def normalized_shapes(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one network's tensors. sizes: inputs, hidden sizes, outputs."""
    norms = [norm_shapes(f"layers.{layer}.norm", size, renormalized=True) for layer, size in enumerate(sizes[:-1])]
    return {name: shape for shapes in (mlp_shapes(sizes), *norms) for name, shape in shapes.items()}


class StackedNormalized:
    """Over tensors [G, …] by the names of `normalized_shapes`; weights are [G, in, out]."""

    def __init__(self, sizes: Sequence[int], activation: str, tensors: Mapping[str, Tensor]) -> None:
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
        """After a gradient step of the networks `wanted` bool [G]: the running statistics follow."""
        for norm in self._norms:
            norm.follow(wanted.view(-1, 1, 1))

    @torch.no_grad()
    def initialize(self, seeds: Tensor, identity: int) -> None:
        """Weights and biases evenly within 1 / sqrt(inputs) from each network's own seed int64 [G]."""
        for name, tensor in self._tensors.items():
            tensor.detach().fill_(1.0 if name.endswith(("scale", "variance")) else 0.0)
        for layer in range(len(self.weights)):
            keys = initialization_keys(seeds, identity, layer)
            weight, bias = uniform_fan_in(keys, *self.weights[layer].shape[1:])
            self.weights[layer].copy_(weight)
            self.biases[layer].copy_(bias.unsqueeze(1))

    def module(self, group: int) -> nn.Module:
        """One of the networks for use with torch alone, its running statistics folded into the weights."""
        modules: list[nn.Module] = []
        for norm, stacked, bias in zip(self._norms, self.weights, self.biases, strict=True):
            factor, summand = norm.affine(group)
            weight = stacked[group].detach()
            modules += [linear_of(weight * factor.unsqueeze(1), bias[group, 0].detach() + summand @ weight)]
            modules += [self._activate]
        return nn.Sequential(*modules[:-1])
