"""Pooled statistics against those of all rows, in rational numbers."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from podracer_core.fusion import Moments, pooled
from podracer_core.networks import RunningNormalizer
from support.fusion import moments_of

OFFSET = 1e6
ALL = torch.ones(2, dtype=torch.bool)


def rows(count: int, seed: int) -> Tensor:
    """[2, count, 3], far away from zero."""
    return OFFSET + torch.randn(2, count, 3, generator=torch.Generator().manual_seed(seed)).double()


def exact(all_rows: Tensor) -> tuple[list[Fraction], list[Fraction]]:
    """Mean and squares of each column of [B, 3]."""
    columns = [[Fraction(value) for value in column] for column in all_rows.t().tolist()]
    means = [sum(column, Fraction()) / len(column) for column in columns]
    squares = [
        sum(((value - mean) ** 2 for value in column), Fraction())
        for column, mean in zip(columns, means, strict=True)
    ]
    return means, squares


def test_parts_are_as_the_whole():
    parts = [rows(count, seed) for seed, count in enumerate((5, 1, 40, 0, 17))]
    whole = pooled([moments_of(part) for part in parts])
    assert whole.count.tolist() == [63, 63]
    for member in range(2):
        means, squares = exact(torch.cat([part[member] for part in parts]))
        for column in range(3):
            assert (
                abs(float(Fraction(whole.mean[member, column].item()) / means[column] - 1)) < 1e-15
            )
            assert (
                abs(float(Fraction(whole.squares[member, column].item()) / squares[column] - 1))
                < 1e-9
            )


def test_parts_without_rows_change_nothing_whatever_they_hold():
    some = moments_of(rows(4, 0))
    nothing = Moments(
        torch.zeros(2, dtype=torch.float64), *torch.full((2, 2, 3), torch.nan, dtype=torch.float64)
    )
    for key, tensor in pooled([some, nothing, nothing]).tensors().items():
        assert torch.equal(tensor, some.tensors()[key])
    empty = pooled([moments_of(rows(0, 0)), nothing])
    assert empty.count.tolist() == [0, 0]
    assert empty.squares.eq(0).all()


def test_nothing_is_counted_twice_over_many_fusions():
    """Three learners see rows of their own for four epochs; what they share ends as one that has
    seen all rows."""
    learners = [RunningNormalizer(2, 3) for _ in range(3)]
    growths = [learner.share(frozen=index != 1) for index, learner in enumerate(learners)]
    seen = []
    for epoch in range(4):
        base = learners[0].moments()
        for rank, learner in enumerate(learners):
            for batch in range(2):
                seen.append((rows(10 + rank, 100 * epoch + 10 * rank + batch) - OFFSET).float())
                learner.update(seen[-1], torch.ones(2, 10 + rank).bool(), ALL)
        assert torch.equal(learners[0].mean, base.mean)
        fused = pooled([base, *(growth.moments() for growth in growths)])
        for learner in learners:
            learner.load_moments(fused)
        assert all(growth.count.eq(0).all() for growth in growths)
    everything = torch.cat(seen, 1).double()
    for learner in learners:
        assert learner.count.tolist() == [everything.shape[1]] * 2
        torch.testing.assert_close(learner.mean, everything.mean(1), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(
            learner.variance, everything.var(1, unbiased=False), rtol=1e-5, atol=0.0
        )


def test_statistics_of_no_rows_are_those_of_a_new_normalizer():
    shared, fresh = RunningNormalizer(2, 3), RunningNormalizer(2, 3)
    shared.share(frozen=True)
    shared.load_moments(fresh.moments())
    assert torch.equal(shared.mean, fresh.mean)
    assert torch.equal(shared.variance, fresh.variance)
