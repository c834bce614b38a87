"""Contributions that are written out, and what becomes of them."""

from __future__ import annotations

import pytest
import torch
from median_fusion.fusion import Median, median
from torch import Tensor

from podracer_core.fusion import Contribution, FusionOptions, FusionState, fuse


def learner(*members: float) -> FusionState:
    """One number a member; NaN where it has diverged."""
    weight = torch.tensor(members).view(-1, 1)
    return FusionState(
        {"weight": weight},
        {},
        torch.zeros(len(members), dtype=torch.int64),
        weight[:, 0].isfinite(),
    )


def fused(before: FusionState, *learners: FusionState) -> Tensor:
    contributions = [Contribution(rank, 1, 1, growth) for rank, growth in enumerate(learners)]
    return fuse(Median(FusionOptions()), before, contributions).parameters["weight"][:, 0]


def test_one_diverged_learner_does_not_move_the_others() -> None:
    assert fused(learner(0.0), learner(1.0), learner(2.0), learner(1e9)).tolist() == [2.0]


def test_of_an_even_number_it_is_the_mean_of_the_middle_two() -> None:
    assert fused(
        learner(0.0), learner(7.0), learner(1.0), learner(4.0), learner(-3.0)
    ).tolist() == [2.5]


def test_a_member_that_diverged_somewhere_is_the_median_of_the_others() -> None:
    brought = learner(1.0, 1.0), learner(5.0, float("nan")), learner(3.0, 2.0)
    assert fused(learner(0.0, 0.0), *brought).tolist() == [3.0, 1.5]


def test_a_member_that_diverged_everywhere_stays_as_it_was() -> None:
    assert fused(learner(8.0, 0.0), learner(float("nan"), 1.0)).tolist() == [8.0, 1.0]


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
def test_it_is_the_median_of_torch_whatever_the_shape(learners: int) -> None:
    values = torch.randn(
        learners, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    expected = values.quantile(0.5, 0)
    torch.testing.assert_close(median(values, torch.ones(learners, 2, dtype=torch.bool)), expected)
