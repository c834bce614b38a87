"""The median of the learners' states: a single diverged learner does not move it."""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.fusion import Fusion, Parameters, Stack


class Median(Fusion):
    """Yin et al. 2018, Byzantine-Robust Distributed Learning, arXiv:1803.01498, definition 1: of
    each number by itself.

    Of an even number of learners it is the mean of the two in the middle.
    """

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        return {name: median(values, stack.counted) for name, values in stack.parameters.items()}


def median(values: Tensor, counted: Tensor) -> Tensor:
    """Of values [K, M, …] along K, of those that are counted [K, M]: [M, …]."""
    present = counted.view(*counted.shape, *[1] * (values.dim() - 2))
    ordered = torch.where(present, values, torch.inf).sort(0).values
    count = counted.sum(0).clamp(min=1)
    middle = torch.stack([(count - 1) // 2, count // 2])
    places = middle.view(2, -1, *[1] * (values.dim() - 2)).expand(2, *values.shape[1:])
    return ordered.gather(0, places).mean(0)
