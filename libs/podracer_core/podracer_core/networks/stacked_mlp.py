"""Multilayer perceptrons with a leading axis of G networks that never mix, and the parameters of
many equal networks in one tensor, so that an optimizer touches them all with one operation.

Wide layers on a CPU go one network after the other through oneDNN. `torch.bmm` in float32 goes to
MKL, which on some processors uses half of what they can do: a product of three times 256 took 330
µs there and 157 µs in oneDNN, on an AMD EPYC with AVX-512 (torch 2.13, one thread). A call takes
one matrix, so this is a loop over networks, each of which is long enough (over 30 µs) not to
notice. `torch.nn.functional.linear` would not do: it goes to MKL too. Without AVX-512 MKL is the
faster one (360 and 388 µs on such an EPYC), and this is left alone."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import normal, uniform

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


def mlp_shapes(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one network's layers. sizes: inputs, hidden sizes, outputs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        shapes[f"layers.{layer}.weight"] = (inputs, outputs)
        shapes[f"layers.{layer}.bias"] = (1, outputs)
    return shapes


@dataclass(frozen=True)
class StackedMLP:
    """`weights[l]` [G, in, out] and `biases[l]` [G, 1, out]; the activation follows every layer but
    the last."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str = "tanh"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InvalidInput(
                f"activation must be one of {sorted(ACTIVATIONS)}, not {self.activation!r}"
            )

    @functools.cached_property
    def single(self) -> Sequence[Sequence[Layer]]:
        """The layers of each network, as views."""
        return single_layers(self.weights, self.biases)

    def __call__(self, inputs: Tensor) -> Tensor:
        """inputs [G, B, in] -> [G, B, out], differentiable once in the inputs and in the
        parameters."""
        if torch.is_grad_enabled():
            output: Tensor = _Differentiable.apply(self, inputs, *self.weights, *self.biases)  # type: ignore[no-untyped-call]
            return output
        activation = ACTIVATIONS[self.activation]
        if is_wide(inputs, self.weights):
            return torch.stack(
                [results[-1] for results in wide_forward(inputs, self.single, activation)]
            )
        hidden = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = activation.forward(torch.baddbmm(bias, hidden, weight))
        return torch.baddbmm(self.biases[-1], hidden, self.weights[-1])

    @torch.no_grad()
    def trace(self, inputs: Tensor, rows: int | None = None) -> MLPPass:
        """The same, and what the gradients of its first `rows` (None: of all) are made of."""
        activation = ACTIVATIONS[self.activation]
        if is_wide(inputs, self.weights):
            wide = wide_forward(inputs, self.single, activation)
            output = torch.stack([results.pop() for results in wide])
            return MLPPass(
                output, self, (), [[each[:rows] for each in results] for results in wide]
            )
        results = [inputs]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = _buffers.take(inputs, bias.shape[2])
            results.append(activation.forward(torch.baddbmm(bias, results[-1], weight, out=hidden)))
        output = torch.baddbmm(self.biases[-1], results[-1], self.weights[-1])
        return MLPPass(output, self, results, (), rows)


@dataclass(slots=True)
class MLPPass:
    """A forward pass of G networks, and its gradients, written out and without autograd.

    The chain of `baddbmm` and activation that autograd would build allocates each result and
    gradient anew. On a CPU this is about a quarter faster where the hidden layers outgrow the
    cache, and no slower where they do not.

    output   [G, B, out]
    """

    output: Tensor
    _mlp: StackedMLP
    _results: Sequence[Tensor]  # what goes into each layer, [G, B, _]
    _wide: Sequence[Sequence[Tensor]]  # or the same network by network, [B, _]
    _rows: int | None = None  # those that gradients are taken of

    @torch.no_grad()
    def backward(
        self, slope: Tensor, into: StackedMLP | None = None, columns: slice | None = None
    ) -> Tensor | None:
        """Take the derivative `slope` [G, B, out] of a loss in `output` back; once only.

        The parameters' gradients are written into those of `into`, unless they are not wanted.
        Returns the derivative in these `columns` of the inputs, [G, B, _]; None where none are
        wanted."""
        mlp, results, activation = self._mlp, self._results, ACTIVATIONS[self._mlp.activation]
        if not results:
            return wide_backward(
                activation,
                self._wide,
                mlp.single,
                slope,
                None if into is None else into.single,
                columns,
            )
        last = len(results) - 1
        for layer in range(last, -1, -1):
            below, above, weight = results[layer][:, : self._rows], slope, mlp.weights[layer]
            if into is not None:
                _inner_products(below, above, into.weights[layer])
                torch.sum(above, 1, keepdim=True, out=into.biases[layer])
            if layer:
                slope = _buffers.take(above, weight.shape[1])
                torch.bmm(above, weight.transpose(1, 2), out=slope)
                activation.backward(slope, below)
                _buffers.give(results[layer])
            elif columns is not None:
                slope = torch.bmm(above, weight[:, columns].transpose(1, 2))
            if layer < last:
                _buffers.give(above)
        return slope if columns is not None else None


class _Differentiable(torch.autograd.Function):
    """A whole `MLPPass` as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, mlp: StackedMLP, inputs: Tensor, *parameters: Tensor) -> Tensor:
        ctx.traced = mlp.trace(inputs)
        output: Tensor = ctx.traced.output
        ctx.traced.output = inputs  # a node that held its own result would never be freed
        ctx.mlp = mlp
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, biases, into = ctx.mlp.weights, ctx.mlp.biases, None
        if ctx.needs_input_grad[2]:  # a critic that only shows an actor the way does not learn
            found = [
                tuple(torch.empty_like(each) for each in parameters)
                for parameters in (weights, biases)
            ]
            into = StackedMLP(found[0], found[1], ctx.mlp.activation)
        slope = ctx.traced.backward(
            gradient, into, slice(None) if ctx.needs_input_grad[1] else None
        )
        ctx.traced = None
        return (
            None,
            slope,
            *(into.weights + into.biases if into else [None] * (len(weights) + len(biases))),
        )


def _inner_products(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left^T right: [G, B, I], [G, B, O] -> [G, I, O]. The narrow side in front is up to three
    times faster."""
    if left.shape[2] > right.shape[2]:
        left, right, out = right, left, out.transpose(1, 2)
    parts = _parts(left)
    if parts == 1:
        torch.bmm(left.transpose(1, 2), right, out=out)
        return
    rows = left.shape[1] // parts * parts
    split = [each[:, :rows].reshape(len(each), parts, -1, each.shape[2]) for each in (left, right)]
    torch.sum(split[0].transpose(2, 3) @ split[1], 1, out=out)
    if rows < left.shape[1]:
        out.baddbmm_(left[:, rows:].transpose(1, 2), right[:, rows:])


def _parts(rows: Tensor) -> int:
    """How many products a product over the rows of [G, B, _] is made of on a GPU. cuBLAS gives a
    small result one block of threads a matrix, so that a few matrices would keep only a few of a
    hundred multiprocessors busy."""
    if rows.device.type == "cpu":
        return 1
    most = min(_BLOCKS // rows.shape[0], rows.shape[1] // _PART_ROWS)
    return 1 << max(0, most.bit_length() - 1)


_BLOCKS, _PART_ROWS = 128, 1024


# After so many buffers taken, those that lay free all the while are released.
_LIFETIME = 1024


class _Buffers(threading.local):
    """Memory for hidden layers that the last gradient step no longer needs; one pool a thread, and
    only on a CPU.

    Elsewhere torch keeps memory itself, and runs backward in another thread than forward: what one
    thread took, the other would gather.

    A buffer that is out belongs to one graph alone, so any number of forward passes may come before
    a backward pass. A graph that is dropped frees its buffers instead of giving them back."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
        # that lay free at the last release
        self._unused: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
        self._taken = 0

    def take(self, rows: Tensor, width: int) -> Tensor:
        """[G, B, width] for `rows` [G, B, _], of the same type; what it holds is undefined."""
        shape = torch.Size((*rows.shape[:2], width))
        if rows.device.type == "cpu":
            self._taken += 1
            if self._taken % _LIFETIME == 0:
                self._unused, self._free = self._free, {}
            for pool in (self._free, self._unused):
                if free := pool.get((shape, rows.dtype)):
                    return free.pop()
        return torch.empty(shape, dtype=rows.dtype, device=rows.device)

    def give(self, buffer: Tensor) -> None:
        """Return a buffer that is no longer read, for reuse."""
        if buffer.device.type == "cpu":
            self._free.setdefault((buffer.shape, buffer.dtype), []).append(buffer)


_buffers = _Buffers()


class StackedParameters:
    """G networks of one shape. `flat` [G, P] holds everything; `[name]` is a leaf view [G, *shape]
    of it.

    The views are ordinary autograd leaves. After `backward()`, `gather_gradient()` puts their
    gradients into `gradient` [G, P], which an optimizer works on."""

    def __init__(
        self, groups: int, shapes: Mapping[str, tuple[int, ...]], device: torch.device | str = "cpu"
    ) -> None:
        self.groups = groups
        self.shapes = dict(shapes)
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        self.size = sum(sizes.values())
        self.flat = torch.zeros(groups, self.size, device=device)
        self.gradient = torch.zeros_like(self.flat)
        self._views: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        start = 0
        for name, shape in shapes.items():
            columns = slice(start, start + sizes[name])
            self._views[name] = self.flat[:, columns].view(groups, *shape).requires_grad_()
            self._gradients[name] = self.gradient[:, columns].view(groups, *shape)
            start += sizes[name]

    @property
    def device(self) -> torch.device:
        """The device of all parameters."""
        return self.flat.device

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def gradient_of(self, name: str) -> Tensor:
        """The gradient of one of them, [G, *shape], a view of `gradient`."""
        return self._gradients[name]

    def zero_gradient(self) -> None:
        """Forget the gradients of the last step."""
        for view in self._views.values():
            view.grad = None

    def gather_gradient(self, *, add: bool = False) -> None:
        """Write what `backward()` has left with each of them into `gradient`; zero where it left
        nothing. `add`: to what is there already."""
        for name, view in self._views.items():
            if add:
                self._gradients[name].add_(0.0 if view.grad is None else view.grad)
            elif view.grad is None:
                self._gradients[name].zero_()
            else:
                self._gradients[name].copy_(view.grad)

    def group_state(self, group: int) -> dict[str, Tensor]:
        """Copies of one network's tensors, without the leading axis."""
        return {name: view.detach()[group].clone() for name, view in self._views.items()}

    def load_group_state(self, group: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite one network with what `group_state` gave. Raises InvalidInput for other names
        or shapes."""
        if set(state) != set(self.shapes):
            raise InvalidInput(f"parameters {sorted(state)} given, {sorted(self.shapes)} expected")
        for name, shape in self.shapes.items():
            if tuple(state[name].shape) != tuple(shape):
                raise InvalidInput(
                    f"parameter {name} has shape {tuple(state[name].shape)}, expected "
                    f"{tuple(shape)}"
                )
        for name, value in state.items():
            self._views[name].detach()[group].copy_(value)


def orthogonal(keys: Tensor, rows: int, columns: int, gain: float = 1.0) -> Tensor:
    """One (semi-)orthogonal matrix for every key: keys int64 [G] -> float32 [G, rows, columns].

    Saxe, McClelland and Ganguli, 2014 (arXiv:1312.6120): the QR decomposition of a Gaussian matrix,
    its signs fixed so that the result is uniformly distributed. Calculated in double precision on
    the CPU, matrix by matrix, so that a network's weights depend on nothing but its key."""
    long_side, short_side = max(rows, columns), min(rows, columns)
    counters = torch.arange(long_side * short_side)
    gaussian = normal(keys.cpu()[:, None], counters).double().view(-1, long_side, short_side)
    q, r = torch.linalg.qr(gaussian)
    q = q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None, :]
    if rows < columns:
        q = q.transpose(1, 2)
    weights: Tensor = (gain * q).float().contiguous()
    return weights.to(keys.device)


def uniform_fan_in(keys: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Weights float32 [G, rows, columns] and biases [G, columns] for every key, evenly within ±1 /
    sqrt(rows).

    What `torch.nn.Linear` draws by default (He et al., 2015, arXiv:1502.01852, with a = sqrt(5)).
    """
    counters = torch.arange(rows * columns + columns, device=keys.device)
    drawn = (2 * uniform(keys[:, None], counters) - 1) / rows**0.5
    weights, biases = drawn.split_with_sizes([rows * columns, columns], 1)
    return weights.view(-1, rows, columns), biases
