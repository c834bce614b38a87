"""The stationary block bootstrap: its blocks, its block length, and that its intervals keep their promise."""

from __future__ import annotations

import numpy as np
import pytest

from podracer_core.backtest.bootstrap import block_length, confidence_interval, resampled_days
from podracer_core.backtest.statistics import sharpe_ratio


def autoregressive(days: int, persistence: float, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0.0, 1.0, days + 100)
    series = np.zeros_like(noise)
    for day in range(1, len(noise)):
        series[day] = persistence * series[day - 1] + noise[day]
    return series[100:]


def test_days_follow_one_another_within_blocks_of_the_mean_length() -> None:
    days = resampled_days(200, 5.0, 500)
    assert days.min() == 0
    assert days.max() == 199
    follows = (days[:, 1:] - days[:, :-1]) % 200 == 1
    assert follows.mean() == pytest.approx(1 - 1 / 5 + 1 / 5 / 200, abs=0.005)
    assert np.bincount(days.ravel(), minlength=200) / 500 == pytest.approx(1.0, abs=0.5)


def test_the_same_blocks_every_time() -> None:
    first = resampled_days(50, 2.0, 10).copy()
    resampled_days.cache_clear()
    assert (resampled_days(50, 2.0, 10) == first).all()


def test_blocks_grow_with_persistence() -> None:
    """For an autoregression of persistence ρ the best length is (4ρ² / (1 - ρ²)²  D)^(1/3): Politis and White 2004."""
    for persistence in (0.3, 0.6, 0.8):
        best = (4 * persistence**2 / (1 - persistence**2) ** 2 * 4000) ** (1 / 3)
        found = np.median([block_length(autoregressive(4000, persistence, seed)) for seed in range(15)])
        assert found == pytest.approx(best, rel=0.3)
    assert np.median([block_length(autoregressive(4000, 0.0, seed)) for seed in range(15)]) < 6


@pytest.mark.parametrize("days", [3, 4, 10, 40])
def test_short_and_still_histories(days: int) -> None:
    series = np.random.default_rng(days).normal(0.001, 0.01, days)
    assert 1 <= block_length(series) <= max(1.0, days / 3)
    assert block_length(np.full(days, 0.01)) == 1
    lower, upper = confidence_interval(series, sharpe_ratio)
    assert lower <= upper
    assert confidence_interval(np.zeros(days), sharpe_ratio) == (0.0, 0.0)


def test_of_two_days_nothing_is_known() -> None:
    returns = np.array([0.01, 0.03])
    assert confidence_interval(returns, sharpe_ratio) == (float(sharpe_ratio(returns)),) * 2
    assert confidence_interval(returns[:0], sharpe_ratio) == (0.0, 0.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    true_ratio = 0.05 * np.sqrt(252)
    covered = 0
    for seed in range(200):
        returns = np.random.default_rng(seed).normal(0.0005, 0.01, 400)
        lower, upper = confidence_interval(returns, sharpe_ratio, resamples=300)
        covered += lower <= true_ratio <= upper
    assert 180 <= covered <= 198
