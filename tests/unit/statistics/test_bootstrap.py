"""The stationary bootstrap: what its resamples are, and what its intervals hold."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from podracer_core.statistics import (
    RESAMPLES,
    bootstrap_interval,
    mean_block_length,
    resamples,
)


def mean(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    average: NDArray[np.float64] = returns.mean(axis=-1)
    return average


def test_resamples_are_blocks_of_the_series():
    rows = np.concatenate(resamples(50, 10))
    assert rows.shape == (RESAMPLES, 50)
    assert rows.min() == 0
    assert rows.max() == 49
    # A block goes on to the next row, round the end; a new one begins with probability 1/10, and by
    # chance (1 in 50) does so where the old one would have gone on.
    goes_on = (rows[:, 1:] == (rows[:, :-1] + 1) % 50).mean()
    assert goes_on == pytest.approx(0.9 + 0.1 / 50, abs=0.005)
    assert np.bincount(rows.ravel(), minlength=50) / rows.size == pytest.approx(
        np.full(50, 0.02), abs=0.002
    )


def test_the_interval_of_independent_returns_is_the_normal_one():
    returns = np.random.default_rng(3).normal(0.001, 0.01, 400)
    lower, upper = bootstrap_interval(returns, mean)
    half_width = 1.96 * returns.std(ddof=1) / 20
    assert lower == pytest.approx(returns.mean() - half_width, abs=0.25 * half_width)
    assert upper == pytest.approx(returns.mean() + half_width, abs=0.25 * half_width)
    assert bootstrap_interval(returns, mean) == (lower, upper)


def test_blocks_grow_with_dependence():
    """AR(1) with ρ = 0.7. Its best length is (2 ρ / (1 - ρ²))^(2/3) · n^(1/3) = 1.96 · 12.6 = 24.7
    days: ΣkR(k) over all k is 2ρ / (1 - ρ)² and ΣR(k) is (1 + ρ) / (1 - ρ) times the variance."""
    generator = np.random.default_rng(5)
    noise = generator.normal(size=2000)
    dependent = np.empty(2000)
    dependent[0] = noise[0]
    for day in range(1, 2000):
        dependent[day] = 0.7 * dependent[day - 1] + noise[day]
    assert mean_block_length(noise) < 6
    assert mean_block_length(dependent) == pytest.approx(24.7, rel=0.5)
    wide = np.ptp(bootstrap_interval(dependent, mean)) / dependent.std()
    assert wide > 1.7 * np.ptp(bootstrap_interval(noise, mean)) / noise.std()


def test_series_too_short_for_more():
    assert bootstrap_interval(np.array([0.02]), mean) == (0.02, 0.02)
    assert bootstrap_interval(np.array([0.02]), lambda values: values.std(axis=-1)) == (0.0, 0.0)
    assert mean_block_length(np.zeros(100)) == 1.0
    lower, upper = bootstrap_interval(np.array([0.02, -0.01]), mean)
    assert lower == -0.01
    assert upper == 0.02
