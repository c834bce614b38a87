"""Counter-based random numbers: their distribution, and that nothing but key and counter decides
them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import (
    derive_key,
    integers,
    normal,
    permutation,
    random_bits,
    uniform,
)

MASK = (1 << 64) - 1
COUNT = 200_000


def _mix(z: int) -> int:
    """The finalizer of Steele, Lea and Flood's SplitMix64, in Python's unbounded integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def _stream(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return derive_key(seed, 1), torch.arange(COUNT)


def _kolmogorov_smirnov(sample: torch.Tensor, cdf: torch.Tensor) -> float:
    """The statistic sqrt(n) sup |F_n - F|, of a sorted sample and its distribution there; above 2.2
    once in 8000."""
    n = sample.numel()
    empirical = torch.arange(1, n + 1, dtype=torch.float64) / n
    return float(
        math.sqrt(n) * torch.maximum((empirical - cdf).abs(), (cdf - empirical + 1 / n).abs()).max()
    )


@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
@pytest.mark.parametrize("counter", [0, 1, 12345, 2**40])
def test_bits_are_splitmix64(key, counter):
    bits = int(random_bits(torch.tensor(key), counter)) & MASK
    assert bits == _mix((key + counter * 0x9E3779B97F4A7C15) & MASK)
    # The generator's published test vector: seed 1234567, first output.
    assert int(random_bits(torch.tensor(1234567), 1)) & MASK == 6457827717110365317


def test_uniform_is_uniform():
    sample = uniform(*_stream()).double()
    assert sample.min() >= 0
    assert sample.max() < 1
    assert abs(sample.mean() - 0.5) < 4 * math.sqrt(1 / 12 / COUNT)
    assert abs(sample.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / COUNT)
    ordered = sample.sort().values
    assert _kolmogorov_smirnov(ordered, ordered) < 2.2


def test_normal_is_normal():
    sample = normal(*_stream()).double()
    assert abs(sample.mean()) < 4 / math.sqrt(COUNT)
    assert abs(sample.var() - 1) < 4 * math.sqrt(2 / COUNT)
    assert abs((sample**3).mean()) < 4 * math.sqrt(15 / COUNT)
    assert abs((sample**4).mean() - 3) < 4 * math.sqrt(96 / COUNT)
    ordered = sample.sort().values
    assert _kolmogorov_smirnov(ordered, torch.special.ndtr(ordered)) < 2.2


def test_normal_is_finite_for_the_extreme_bits(monkeypatch):
    extremes = torch.tensor([0, -1, 0xFFFFFFFF, -(2**32), 2**63 - 1, -(2**63), 1, 0xFFFFFFFE])
    monkeypatch.setattr(
        "podracer_core.random_numbers.random_bits", lambda key, counter: extremes.clone()
    )
    sample = normal(extremes, 0)
    assert sample.isfinite().all()
    assert sample.abs().max() < 6.7


def test_integers_are_even():
    counts = integers(*_stream(), 7).bincount(minlength=7).double()
    expected = COUNT / 7
    assert counts.numel() == 7
    # chi squared, 6 degrees of freedom, one in 10,000
    assert ((counts - expected) ** 2 / expected).sum() < 27.9
    assert (integers(*_stream(), 1) == 0).all()
    assert (
        0
        <= int(integers(*_stream(), 2**31).min())
        <= int(integers(*_stream(), 2**31).max())
        < 2**31
    )
    with pytest.raises(InvalidInput, match="bound"):
        integers(*_stream(), 0)


def test_streams_are_independent():
    """Neighbouring seeds, words and counters: uncorrelated to 4.5 standard errors."""
    counters = torch.arange(50_000)
    words = [(0,), (1,), (0, 0), (0, 1), (1, 0), (2, 5), (5, 2)]
    streams = [
        uniform(derive_key(seed, *word), counters).double() for seed in (0, 1) for word in words
    ]
    streams.append(uniform(derive_key(0, 0), counters + 1).double())
    for one, other in itertools.combinations(streams, 2):
        correlation = torch.corrcoef(torch.stack([one, other]))[0, 1]
        assert abs(correlation) < 4.5 / math.sqrt(counters.numel())


def test_keys_never_collide():
    indices = torch.arange(300)
    keys = [derive_key(seed, word, indices) for seed in range(10) for word in range(10)]
    keys += [derive_key(seed, indices) for seed in range(10)]
    assert torch.cat(keys).unique().numel() == 300 * 110
    assert derive_key(5, 1, 2) != derive_key(5, 2, 1)


def test_one_alone_is_one_of_many():
    keys = derive_key(7, torch.arange(100))
    counters = torch.arange(33)
    for draw in (uniform, normal, lambda key, counter: integers(key, counter, 10)):
        batch = draw(keys[:, None], counters)
        assert batch.shape == (100, 33)
        assert torch.equal(batch, draw(keys[:, None], counters))
        assert torch.equal(batch[17], draw(derive_key(7, 17), counters))
        assert torch.equal(batch[17, 5], draw(keys[17], 5))
        assert torch.equal(batch[:, 5], draw(keys, torch.tensor(5)))
        assert torch.equal(batch[40:43, 5], draw(keys[40:43], 5))


def test_arguments_are_not_altered():
    keys, counters = derive_key(0, torch.arange(4)), torch.arange(4)
    before = keys.clone(), counters.clone()
    uniform(keys, counters)
    normal(keys, counters)
    permutation(keys, counters, 5)
    derive_key(keys, counters)
    assert torch.equal(keys, before[0])
    assert torch.equal(counters, before[1])


def test_seeds_and_words_of_any_size():
    assert derive_key(-1) == derive_key(MASK)
    assert derive_key(2**70 + 3, -5) == derive_key(3, MASK - 4)
    assert derive_key(torch.tensor([3]), torch.tensor(4)) == derive_key(3, 4)
    assert derive_key(1, 2).shape == ()
    assert derive_key(1, 2).dtype == torch.int64


@pytest.mark.parametrize("length", [1, 2, 3, 64, 1000, 8192])
def test_permutations_hold_every_index_once(length):
    rows = permutation(derive_key(0, torch.arange(4)), 9, length)
    assert rows.shape == (4, length)
    assert torch.equal(rows.sort(dim=1).values, torch.arange(length).expand(4, length))
    if length >= 64:
        assert len({tuple(row.tolist()) for row in rows}) == 4


def test_permutations_depend_on_key_and_counter_only():
    keys = derive_key(0, torch.arange(4))
    rows = permutation(keys, 9, 100)
    assert torch.equal(rows[2:3], permutation(keys[2:3], torch.tensor(9), 100))
    assert torch.equal(rows, permutation(keys, torch.full((4,), 9), 100))
    assert not torch.equal(rows, permutation(keys, 10, 100))
    with pytest.raises(InvalidInput, match="length"):
        permutation(keys, 0, 0)


def test_every_permutation_is_equally_likely():
    rows = permutation(derive_key(3, torch.arange(24_000)), 0, 4)
    codes = (rows * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = codes.unique(return_counts=True)[1].double()
    assert counts.numel() == 24
    # chi squared, 23 degrees of freedom, one in 20,000
    assert ((counts - 1000) ** 2 / 1000).sum() < 58.6


def test_nothing_waits_for_the_device():
    """Tensors on the meta device have no values: reading one would raise."""
    keys = derive_key(torch.zeros(4, dtype=torch.int64, device="meta"), 1, 2)
    counter = torch.zeros((), dtype=torch.int64, device="meta")
    assert uniform(keys, counter).shape == normal(keys, counter).shape == (4,)
    assert permutation(keys, counter, 16).shape == (4, 16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_draws_the_same():
    keys, counters = derive_key(0, torch.arange(100))[:, None], torch.arange(100)
    on_gpu = keys.cuda(), counters.cuda()
    assert torch.equal(uniform(*on_gpu).cpu(), uniform(keys, counters))
    assert torch.equal(
        permutation(on_gpu[0][:, 0], 3, 1000).cpu(), permutation(keys[:, 0], 3, 1000)
    )
    torch.testing.assert_close(normal(*on_gpu).cpu(), normal(keys, counters), atol=1e-5, rtol=1e-5)
    graph, counter = torch.cuda.CUDAGraph(), torch.zeros((), dtype=torch.int64, device="cuda")
    normal(on_gpu[0], counter)
    with torch.cuda.graph(graph):
        drawn = normal(on_gpu[0], counter)
    counter.fill_(7)
    graph.replay()
    assert torch.equal(drawn, normal(on_gpu[0], counter))
