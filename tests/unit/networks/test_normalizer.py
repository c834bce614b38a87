"""Running statistics against those of all the data at once."""

from __future__ import annotations

import torch

from podracer_core.networks import RunningNormalizer

MEMBERS, SIZE = 2, 3
ALL = torch.ones(MEMBERS, dtype=torch.bool)


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        1000.0 + scale * torch.randn(MEMBERS, rows, SIZE, generator=generator)
        for rows, scale in ((5, 1), (90, 9))
    ]


def test_equals_the_statistics_of_all_rows():
    normalizer = RunningNormalizer(MEMBERS, SIZE)
    for rows in batches():
        normalizer.update(rows, torch.ones(rows.shape[:2], dtype=torch.bool), ALL)
    everything = torch.cat(batches(), 1).double()
    torch.testing.assert_close(normalizer.mean, everything.mean(1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        normalizer.variance, everything.var(1, unbiased=False), rtol=1e-4, atol=1e-4
    )
    assert normalizer.count.tolist() == [95, 95]


def test_invalid_rows_and_frozen_members_change_nothing():
    rows = batches()[1]
    valid = torch.rand(rows.shape[:2], generator=torch.Generator().manual_seed(2)) < 0.7
    normalizer, clean = RunningNormalizer(MEMBERS, SIZE), RunningNormalizer(MEMBERS, SIZE)
    normalizer.update(
        torch.where(valid.unsqueeze(-1), rows, torch.nan), valid, torch.tensor([True, False])
    )
    clean.update(
        rows[:1].expand(MEMBERS, -1, -1)[:, valid[0]],
        torch.ones(MEMBERS, int(valid[0].sum())).bool(),
        ALL,
    )
    torch.testing.assert_close(normalizer.mean[0], clean.mean[0])
    torch.testing.assert_close(normalizer.variance[0], clean.variance[0])
    assert normalizer.count.tolist() == [int(valid[0].sum()), 0]
    assert normalizer.mean[1].tolist() == [0, 0, 0]
    normalizer.update(rows, torch.zeros_like(valid), ALL)
    assert normalizer.mean.isfinite().all()
    assert normalizer.count[1] == 0


def test_nothing_seen_means_nothing_changed_and_constants_keep_their_scale():
    normalizer = RunningNormalizer(MEMBERS, SIZE)
    assert normalizer.scale().tolist() == [[1.0] * SIZE] * MEMBERS
    normalizer.update(torch.full((MEMBERS, 4, SIZE), 3.0), torch.ones(MEMBERS, 4).bool(), ALL)
    assert normalizer.scale().tolist() == [[1.0] * SIZE] * MEMBERS
    assert normalizer.mean.tolist() == [[3.0] * SIZE] * MEMBERS


def test_member_state_round_trip():
    normalizer = RunningNormalizer(MEMBERS, SIZE)
    normalizer.update(batches()[0], torch.ones(MEMBERS, 5).bool(), ALL)
    other = RunningNormalizer(1, SIZE)
    other.load_member_state(0, normalizer.member_state(1))
    assert torch.equal(other.mean[0], normalizer.mean[1])
    assert torch.equal(other.variance[0], normalizer.variance[1])
    assert other.count[0] == normalizer.count[1]
