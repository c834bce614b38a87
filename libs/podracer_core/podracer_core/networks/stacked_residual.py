"""Networks whose layers normalize, with a leading axis of G networks.

StackedResidual     the body of FlashSAC (arXiv:2604.04539), with weights of unit norm: normalized
                    inputs, a linear layer to the width W, blocks of [W -> 4 W, normalize, activate,
                    4 W -> W, normalize, activate, + what came in], RMSNorm, and a linear layer to
                    the outputs
StackedNormalized   each layer's inputs by batch statistics, as in CrossQ (Bhatt et al., 2024,
                    arXiv:1902.05605)
StackedLayerNorm    each hidden layer's outputs, row by row (Ba et al., 2016, arXiv:1607.06450)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from podracer_core.errors import InvalidInput
from podracer_core.networks.stacked_mlp import mlp_shapes, orthogonal, uniform_fan_in
from podracer_core.random_numbers import initialization_keys

_EXPANSION = 4
_MOMENTUM = 0.01
_BATCH_EPSILON, _RMS_EPSILON, _UNIT_EPSILON = 1e-5, 1e-6, 1e-8
_STATISTICS = ("mean", "variance")
# of batch renormalization: steps before it, r_max, d_max
_WARM_UP, _LARGEST_RATIO, _LARGEST_OFFSET = 100_000, 3.0, 5.0

ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


def residual_shapes(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one network's tensors. sizes: inputs, the width once for each block,
    outputs.

    Raises InvalidInput for widths that differ: a block adds what came in to what comes out.
    """
    inputs, *widths, outputs = sizes
    if not widths or len(set(widths)) > 1:
        raise InvalidInput(
            f"hidden_sizes must be one width for each block, all the same, not {tuple(widths)}"
        )
    width = widths[0]
    shapes: dict[str, tuple[int, ...]] = {
        **norm_shapes("embed.norm", inputs),
        "embed.weight": (inputs, width),
    }
    for block in range(len(widths)):
        for name, rows, columns in (
            ("rise", width, _EXPANSION * width),
            ("fall", _EXPANSION * width, width),
        ):
            shapes[f"blocks.{block}.{name}.weight"] = (rows, columns)
            shapes |= norm_shapes(f"blocks.{block}.{name}.norm", columns)
    return shapes | {
        "last.norm.scale": (1, width),
        "last.weight": (width, outputs),
        "last.bias": (1, outputs),
    }


def norm_shapes(name: str, width: int, *, renormalized: bool = False) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what one network's `BatchNorm` has."""
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}.{part}": (1, width) for part in ("scale", "shift", *_STATISTICS)
    }
    return shapes | ({f"{name}.steps": (1, 1)} if renormalized else {})


class BatchNorm:
    """Batch normalization of rows [G, B, in]: by their own mean and variance, or by the running
    ones; see `follow`.

    Where the tensors have `steps`, it is batch renormalization (Ioffe, 2017, arXiv:1702.03275)
    after 100,000 of these: what comes out is as by the running statistics, within limits, and has
    the slope of the rows' own."""

    def __init__(
        self, tensors: Mapping[str, Tensor], name: str, epsilon: float = _BATCH_EPSILON
    ) -> None:
        self._epsilon = epsilon
        self.scale, self.shift = tensors[f"{name}.scale"], tensors[f"{name}.shift"]
        # Neither is learned: they lie among the parameters, so that states and copies have them,
        # without a gradient. `data`, not `detach()`: autograd must not take their change for one of
        # all the parameters in that memory.
        self.mean, self.variance = (tensors[f"{name}.{part}"].data for part in _STATISTICS)
        self._steps = tensors[f"{name}.steps"].data if f"{name}.steps" in tensors else None
        # mean and variance [G, 1, in] of the last rows
        self._seen: tuple[Tensor, Tensor] | None = None

    def __call__(self, rows: Tensor, *, by_batch: bool) -> Tensor:
        if not by_batch:
            factor = self.scale * (self.variance + self._epsilon).rsqrt()
            return torch.addcmul(self.shift - self.mean * factor, rows, factor)
        if self._steps is None:
            normal, mean, variance = _normalized(rows, self.scale, self.shift, self._epsilon)
        else:
            normal, mean, variance = _normalized(rows, None, None, self._epsilon)
            root = (self.variance + self._epsilon).rsqrt()
            ratio = ((variance + self._epsilon).sqrt() * root).clamp(
                1.0 / _LARGEST_RATIO, _LARGEST_RATIO
            )
            offset = ((mean - self.mean) * root).clamp(-_LARGEST_OFFSET, _LARGEST_OFFSET)
            normal = torch.where(self._steps < _WARM_UP, normal, normal * ratio + offset)
            normal = normal * self.scale + self.shift
        self._seen = mean, variance * (rows.shape[1] / max(1, rows.shape[1] - 1))
        return normal

    def follow(self, wanted: Tensor) -> None:
        """The running statistics of the networks `wanted` [G, 1, 1] move towards those of the last
        rows."""
        if self._seen is not None:
            for running, batch in zip((self.mean, self.variance), self._seen, strict=True):
                running.copy_(
                    torch.where(wanted & batch.isfinite(), running.lerp(batch, _MOMENTUM), running)
                )
            if self._steps is not None:
                self._steps.add_(wanted)
            self._seen = None

    def affine(self, group: int) -> tuple[Tensor, Tensor]:
        """Factor and summand [in] that do what the running statistics do, for one network."""
        factor = self.scale[group, 0] * (self.variance[group, 0] + self._epsilon).rsqrt()
        return factor.detach(), (self.shift[group, 0] - self.mean[group, 0] * factor).detach()


def _normalized(
    rows: Tensor, scale: Tensor | None, shift: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """rows [G, B, C] by their own mean and variance over B, then scaled and shifted, [G, 1, C]
    each; and these two, biased and without a gradient, [G, 1, C]."""
    normal, mean, inverse = _Normalized.apply(rows, scale, shift, epsilon)  # type: ignore[no-untyped-call]
    return normal, mean, (inverse.square().reciprocal() - epsilon).clamp_(min=0.0)


class _Normalized(torch.autograd.Function):
    """`_normalized`, with the inverse of the deviation in place of the variance, in few passes
    through memory: on a CPU by torch's own kernel, network by network; elsewhere with its slopes
    written out."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, scale: Tensor | None, shift: Tensor | None, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        if rows.device.type == "cpu":
            normal = torch.empty_like(rows)
            mean, inverse = (rows.new_empty(rows.shape[0], 1, rows.shape[2]) for _ in range(2))
            for g, each in enumerate(rows):
                weight, bias = (
                    None if tensor is None else tensor[g, 0] for tensor in (scale, shift)
                )
                out = normal[g], mean[g, 0], inverse[g, 0]
                torch.native_batch_norm(each, weight, bias, None, None, True, 0.0, epsilon, out=out)
        else:
            variance, mean = torch.var_mean(rows, 1, correction=0, keepdim=True)
            inverse = (variance + epsilon).rsqrt()
            factor = inverse if scale is None else inverse * scale
            offset = -mean * factor if shift is None else shift - mean * factor
            normal = torch.addcmul(offset, rows, factor)
        ctx.save_for_backward(rows, scale, mean, inverse)
        ctx.epsilon = epsilon
        ctx.mark_non_differentiable(mean, inverse)
        return normal, mean, inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        rows, scale, mean, inverse = ctx.saved_tensors
        learns = ctx.needs_input_grad[1]
        if slope.device.type != "cpu":
            found = _slopes(slope, rows, scale, mean, inverse)
            return *(found if learns else (found[0], None, None)), None
        parts = [
            torch.ops.aten.native_batch_norm_backward(
                each,
                rows[g],
                None if scale is None else scale[g, 0],
                None,
                None,
                mean[g, 0],
                inverse[g, 0],
                True,
                ctx.epsilon,
                [True, learns, learns],
            )
            for g, each in enumerate(slope.contiguous())
        ]
        stacked = (
            [torch.stack(each) for each in zip(*parts, strict=True)]
            if learns
            else [torch.stack([p[0] for p in parts])]
        )
        return (
            stacked[0],
            *([each.unsqueeze(1) for each in stacked[1:]] if learns else [None, None]),
            None,
        )


def _slopes(
    slope: Tensor, rows: Tensor, scale: Tensor | None, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of rows [G, B, C], scale and shift [G, 1, C] from `slope` [G, B, C], the gradient
    of the outputs."""
    shift_slope = slope.sum(1, keepdim=True)
    scale_slope = ((slope * rows).sum(1, keepdim=True) - mean * shift_slope) * inverse
    factor = inverse if scale is None else inverse * scale
    gain = -factor * inverse * scale_slope / rows.shape[1]
    offset = -factor * shift_slope / rows.shape[1] - gain * mean
    return torch.addcmul(offset, slope, factor).addcmul_(rows, gain), scale_slope, shift_slope


class StackedResidual:
    """Networks over tensors [G, …] by the names of `residual_shapes`; weights are [G, in, out].

    weights   of all linear layers
    """

    def __init__(
        self, sizes: Sequence[int], activation: str, tensors: Mapping[str, Tensor]
    ) -> None:
        self._tensors = tensors
        self._activate: Callable[[Tensor], Tensor] = ACTIVATIONS[activation]()
        self._activate_ = (
            torch.relu_ if activation == "relu" else self._activate
        )  # in place, where nothing else reads it
        self._layers = [
            name.removesuffix(".weight")
            for name in residual_shapes(sizes)
            if name.endswith(".weight")
        ]
        self._norms = {name: BatchNorm(tensors, f"{name}.norm") for name in self._layers[:-1]}

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Weights of the linear layers, [G, in, out] each."""
        return tuple(self._tensors[f"{name}.weight"] for name in self._layers)

    def __call__(self, inputs: Tensor, *, by_batch: bool = False) -> Tensor:
        """inputs [G, B, in] -> [G, B, outputs]. `by_batch`: normalized by the statistics of these
        rows, and not by the running ones."""
        hidden = torch.bmm(
            self._norms["embed"](inputs, by_batch=by_batch), self._tensors["embed.weight"]
        )
        for rise, fall in self._blocks():
            inner = self._normalized(rise, hidden, by_batch=by_batch)
            hidden = hidden + self._normalized(fall, inner, by_batch=by_batch)
        root = (hidden.square().mean(-1, keepdim=True) + _RMS_EPSILON).rsqrt()
        hidden = hidden * root * self._tensors["last.norm.scale"]
        return torch.baddbmm(self._tensors["last.bias"], hidden, self._tensors["last.weight"])

    def _normalized(self, layer: str, inputs: Tensor, *, by_batch: bool) -> Tensor:
        rows = torch.bmm(inputs, self._tensors[f"{layer}.weight"])
        return self._activate_(self._norms[layer](rows, by_batch=by_batch))

    def _blocks(self) -> Iterator[tuple[str, str]]:
        inner = self._layers[1:-1]
        return zip(inner[::2], inner[1::2], strict=True)

    @torch.no_grad()
    def settle(self, wanted: Tensor) -> None:
        """Update the running statistics after a gradient step of the networks `wanted` bool [G];
        each output's weights come to norm 1, scale and shift of a batch normalization together to
        √width, RMSNorm's scale to √width."""
        wanted = wanted.view(-1, 1, 1)
        for norm in self._norms.values():
            norm.follow(wanted)
        for weight in self.weights:
            _rescale(wanted, weight.square().sum(1, keepdim=True), 1.0, weight)
        for norm in self._norms.values():
            squares = (norm.scale.square() + norm.shift.square()).sum(2, keepdim=True)
            _rescale(wanted, squares, norm.scale.shape[2], norm.scale, norm.shift)
        scale = self._tensors["last.norm.scale"]
        _rescale(wanted, scale.square().sum(2, keepdim=True), scale.shape[2], scale)

    @torch.no_grad()
    def initialize(self, seeds: Tensor, identity: int) -> None:
        """Orthogonal weights of gain 1 from each network's own seed int64 [G], then `settle`."""
        for tensor_name, tensor in self._tensors.items():
            tensor.detach().fill_(1.0 if tensor_name.endswith(("scale", "variance")) else 0.0)
        for number, weight in enumerate(self.weights):
            keys = initialization_keys(seeds, identity, number)
            weight.copy_(orthogonal(keys, weight.shape[1], weight.shape[2]))
        self.settle(torch.ones_like(seeds, dtype=torch.bool))

    def module(self, group: int) -> nn.Module:
        """One of the networks for use with torch alone, its running statistics folded into the
        weights."""
        return _ResidualModule(
            self._linear(group, "embed"),
            [
                (self._linear(group, rise), self._linear(group, fall))
                for rise, fall in self._blocks()
            ],
            self._tensors["last.norm.scale"][group, 0].detach(),
            self._linear(group, "last"),
            self._activate,
        )

    def _linear(self, group: int, layer: str) -> nn.Linear:
        weight = self._tensors[f"{layer}.weight"][group].detach()
        if layer == "last":
            bias = self._tensors["last.bias"][group, 0].detach()
        elif layer == "embed":  # what normalizes stands before it
            factor, summand = self._norms[layer].affine(group)
            weight, bias = weight * factor.unsqueeze(1), summand @ weight
        else:
            factor, bias = self._norms[layer].affine(group)
            weight = weight * factor
        return linear_of(weight, bias)


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """torch's own layer of weight [in, out] and bias [out]."""
    linear = nn.Linear(*weight.shape)
    linear.weight.data.copy_(weight.t())
    linear.bias.data.copy_(bias)
    return linear


def _rescale(wanted: Tensor, squares: Tensor, target: float, *tensors: Tensor) -> None:
    factor = torch.where(wanted, (target / (squares + _UNIT_EPSILON)).sqrt(), 1.0)
    for tensor in tensors:
        tensor.detach().mul_(factor)


class _ResidualModule(nn.Module):
    def __init__(
        self,
        embed: nn.Linear,
        blocks: Sequence[tuple[nn.Linear, nn.Linear]],
        scale: Tensor,
        last: nn.Linear,
        activate: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.embed, self.last, self._activate = embed, last, activate
        self.rise = nn.ModuleList([rise for rise, _ in blocks])
        self.fall = nn.ModuleList([fall for _, fall in blocks])
        self.register_buffer("scale", scale.clone())

    scale: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, in] -> [B, outputs]."""
        hidden = self.embed(inputs)
        for rise, fall in zip(self.rise, self.fall, strict=True):
            hidden = hidden + self._activate(fall(self._activate(rise(hidden))))
        hidden = (
            hidden * (hidden.square().mean(-1, keepdim=True) + _RMS_EPSILON).rsqrt() * self.scale
        )
        output: Tensor = self.last(hidden)
        return output


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
