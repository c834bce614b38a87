"""A Box of actions in the policy's own units, in which it is [-1, 1]."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from podracer_core.errors import InvalidInput


class BoxUnits:
    """environment = offset + scale * own, clipped to the box. A dimension without two finite bounds keeps its units.

    low, high, scale, offset   float32 [size], size being the numbers in an action
    """

    def __init__(
        self, space: gymnasium.spaces.Box, device: torch.device | str = "cpu", *, bounded: bool = False
    ) -> None:
        """With `bounded` every dimension must have two finite bounds; raises InvalidInput where one has not."""
        self.space, self.shape, self.size = space, space.shape, math.prod(space.shape)
        low = np.asarray(space.low, np.float64).reshape(-1)
        high = np.asarray(space.high, np.float64).reshape(-1)
        finite = np.isfinite(low) & np.isfinite(high)
        if bounded and not finite.all():
            raise InvalidInput(
                f"this policy acts in a Box with finite bounds, not in {space}", reason="ACTION_SPACE_UNSUPPORTED"
            )
        with np.errstate(invalid="ignore"):
            scale = np.where(finite, (high - low) / 2, 1.0)
            offset = np.where(finite, (high + low) / 2, 0.0)

        def constant(values: np.ndarray[Any, Any]) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=device)

        self.low, self.high, self.scale, self.offset = map(constant, (low, high, scale, offset))

    def to_environment(self, action: Tensor) -> Tensor:
        """action [..., size] -> [..., *shape], in the box."""
        scaled = torch.addcmul(self.offset, self.scale, action)
        clipped = torch.minimum(torch.maximum(scaled, self.low), self.high)
        return clipped.view(*action.shape[:-1], *self.shape)

    def module(self, *, squash: bool = False) -> nn.Module:
        """The same for use with torch alone, after a tanh where `squash`."""
        return _ToEnvironment(self, squash)


class _ToEnvironment(nn.Module):
    def __init__(self, units: BoxUnits, squash: bool) -> None:
        super().__init__()
        self._shape, self._squash = units.shape, squash
        for name in ("low", "high", "scale", "offset"):
            self.register_buffer(name, getattr(units, name).detach().clone())

    low: Tensor
    high: Tensor
    scale: Tensor
    offset: Tensor

    def forward(self, output: Tensor) -> Tensor:
        own = output[:, : self.low.shape[0]]
        scaled = self.offset + self.scale * (own.tanh() if self._squash else own)
        return torch.minimum(torch.maximum(scaled, self.low), self.high).view(-1, *self._shape)
