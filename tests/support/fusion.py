"""Cohorts of two members with two small tensors, as learners bring them to a fusion."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from podracer_core.fusion import Contribution, FusionOptions, FusionState, Mean, Moments, fuse

MEMBERS, SIZE = 2, 3


def make_state(
    seed: int = 0, *, active: tuple[bool, ...] = (True, True), transitions: int = 0, rows: int = 0
) -> FusionState:
    """Parameters of a generator's own; statistics of `rows` rows a member."""
    generator = torch.Generator().manual_seed(seed)
    return FusionState(
        {
            "layers.0.weight": torch.randn(MEMBERS, 4, SIZE, generator=generator),
            "log_std": torch.randn(MEMBERS, SIZE, generator=generator),
        },
        {
            "observations": moments_of(
                100 + 7 * torch.randn(MEMBERS, rows, SIZE, generator=generator).double()
            )
        },
        torch.full((MEMBERS,), transitions),
        torch.tensor(active),
    )


def moments_of(rows: Tensor) -> Moments:
    """rows [M, B, K]."""
    count = torch.full((rows.shape[0],), float(rows.shape[1]), dtype=torch.float64)
    if not rows.shape[1]:
        return Moments(count, *torch.zeros(2, rows.shape[0], rows.shape[2], dtype=torch.float64))
    mean = rows.mean(1)
    return Moments(count, mean, (rows - mean.unsqueeze(1)).square().sum(1))


def make_contribution(rank: int, epoch: int = 1, samples: int = 8, **state: Any) -> Contribution:
    """Of a learner whose parameters follow from its rank and the epoch."""
    growth = make_state(1000 * epoch + rank, transitions=samples // MEMBERS, rows=rank + 2, **state)
    return Contribution(rank, epoch, samples, growth)


def mean_of(before: FusionState, *contributions: Contribution) -> FusionState:
    """What has to come of these and of no others."""
    return fuse(Mean(FusionOptions()), before, contributions)


def same(one: FusionState, other: FusionState) -> bool:
    """To the last bit."""
    pairs = [(tensor, other.parameters[name]) for name, tensor in one.parameters.items()]
    for name, moments in one.statistics.items():
        others = other.statistics[name].tensors()
        pairs += [(tensor, others[key]) for key, tensor in moments.tensors().items()]
    pairs += [(one.transitions, other.transitions), (one.active, other.active)]
    return all(torch.equal(first, second) for first, second in pairs)
