"""The parameters of many equal networks in one tensor, so that an optimizer touches them all with
one operation."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import normal, uniform


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
