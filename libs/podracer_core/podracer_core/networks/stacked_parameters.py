"""The parameters of many equal networks in one tensor, so that an optimizer touches them all with one operation."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput


class StackedParameters:
    """G networks of one shape. `flat` [G, P] holds everything; `[name]` is a leaf view [G, *shape] of it.

    The views are ordinary autograd leaves. After `backward()`, `gather_gradient()` puts their gradients into `gradient`
    [G, P], which an optimizer works on.
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
            self._views[name] = self.flat[:, columns].view(groups, *shape).requires_grad_()
            self._gradients[name] = self.gradient[:, columns].view(groups, *shape)
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
        for view in self._views.values():
            view.grad = None

    def gather_gradient(self) -> None:
        """Write what `backward()` has left with each of them into `gradient`; zero where it left nothing."""
        for name, view in self._views.items():
            if view.grad is None:
                self._gradients[name].zero_()
            else:
                self._gradients[name].copy_(view.grad)

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
