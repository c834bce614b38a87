"""The parameters of many equal networks in one tensor, so that an optimizer touches them all with one operation."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput


class StackedParameters:
    """G networks of one shape. `flat` [G, P] holds everything; `[name]` is a leaf view [G, *shape] of it.

    The views are ordinary autograd leaves whose `.grad` are views of `gradient` [G, P]: after `backward()` the whole
    gradient lies in one tensor. So never set `.grad` to None; call `zero_gradient()`.
    """

    def __init__(self, groups: int, shapes: Mapping[str, tuple[int, ...]], device: torch.device | str = "cpu") -> None:
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
            view = self.flat[:, columns].view(groups, *shape).requires_grad_()
            view.grad = self.gradient[:, columns].view(groups, *shape)
            self._views[name], self._gradients[name] = view, view.grad
            start += sizes[name]

    @property
    def device(self) -> torch.device:
        """Where all of them lie."""
        return self.flat.device

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def gradient_of(self, name: str) -> Tensor:
        """The gradient of one of them, [G, *shape], a view of `gradient`."""
        return self._gradients[name]

    def zero_gradient(self) -> None:
        """Forget the gradients of the last step."""
        self.gradient.zero_()

    def group_state(self, group: int) -> dict[str, Tensor]:
        """Copies of one network's tensors, without the leading axis."""
        return {name: view.detach()[group].clone() for name, view in self._views.items()}

    def load_group_state(self, group: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite one network with what `group_state` gave. Raises InvalidInput for other names or shapes."""
        if set(state) != set(self.shapes):
            raise InvalidInput(f"parameters {sorted(state)} given, {sorted(self.shapes)} expected")
        for name, shape in self.shapes.items():
            if tuple(state[name].shape) != tuple(shape):
                raise InvalidInput(f"parameter {name} has shape {tuple(state[name].shape)}, expected {tuple(shape)}")
        for name, value in state.items():
            self._views[name].detach()[group].copy_(value)
