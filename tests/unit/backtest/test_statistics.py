"""Statistics of an account by hand, and beside a library that others rely on."""

from __future__ import annotations

import math

import empyrical
import numpy as np
import pytest

from podracer_core.backtest import statistics
from podracer_core.backtest.statistics import STATISTICS, daily_returns, drawdown

# 100 -> 110 -> 99 -> 108.9 -> 98.01: returns of +10 %, -10 %, +10 %, -10 %.
UP_AND_DOWN = np.array([0.1, -0.1, 0.1, -0.1])
# The mean is 0, each differs by 0.1: the sample variance is 4 · 0.01 / 3.
DEVIATION = math.sqrt(0.04 / 3)
# 100 -> 103 -> 101.97 -> 105.0291: +3 %, -1 %, +3 %. Mean 5 / 3 %, sample variance (2 · (4/3)² + (8/3)²) / 2 = 16 / 3.
RISING = np.array([0.03, -0.01, 0.03])


def test_returns_of_days_by_hand() -> None:
    times = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[us]")
    assert daily_returns(times, np.array([100.0, 110.0, 99.0])) == pytest.approx([0.1, -0.1])


def test_bars_within_a_day_are_compounded() -> None:
    """The first value is where all begins; of every day its last one counts."""
    clock = ["2020-01-01T10:00", "2020-01-01T15:00", "2020-01-02T10:00", "2020-01-02T15:00"]
    found = daily_returns(np.array(clock, dtype="datetime64[us]"), np.array([100.0, 110.0, 50.0, 99.0]))
    assert found == pytest.approx([0.1, -0.1])


def test_an_account_that_ends_lower_by_hand() -> None:
    assert statistics.cumulative_return(UP_AND_DOWN) == pytest.approx(0.9801 - 1)
    assert statistics.annual_return(UP_AND_DOWN) == pytest.approx(0.9801**63 - 1)  # 252 / 4 times as long
    assert statistics.annual_volatility(UP_AND_DOWN) == pytest.approx(DEVIATION * math.sqrt(252))
    assert statistics.sharpe_ratio(UP_AND_DOWN) == pytest.approx(0.0, abs=1e-12)
    assert drawdown(UP_AND_DOWN) == pytest.approx([0.0, -0.1, -0.01, -0.109])
    assert statistics.maximum_drawdown(UP_AND_DOWN) == pytest.approx(98.01 / 110 - 1)
    assert statistics.calmar_ratio(UP_AND_DOWN) == pytest.approx((0.9801**63 - 1) / 0.109)


def test_an_account_that_rises_by_hand() -> None:
    assert statistics.sharpe_ratio(RISING) == pytest.approx((5 / 3) / math.sqrt(16 / 3) * math.sqrt(252))
    # One loss of 1 % among three days: √(0.01² / 3).
    assert statistics.sortino_ratio(RISING) == pytest.approx((0.05 / 3) / math.sqrt(0.0001 / 3) * math.sqrt(252))
    assert statistics.maximum_drawdown(RISING) == pytest.approx(-0.01)


def test_a_fall_from_the_beginning_is_a_drawdown() -> None:
    assert statistics.maximum_drawdown(np.array([-0.2, 0.1])) == pytest.approx(-0.2)


@pytest.mark.parametrize("still", [np.zeros(5), np.full(5, 0.001), np.full(1, 0.5)])
def test_without_risk_there_is_no_ratio(still: np.ndarray) -> None:
    assert statistics.annual_volatility(still) == 0.0
    assert statistics.sharpe_ratio(still) == 0.0
    assert statistics.sortino_ratio(still) == 0.0
    assert statistics.calmar_ratio(still) == 0.0


def test_rows_are_independent() -> None:
    rows = np.random.default_rng(0).normal(0.0005, 0.01, (7, 300))
    for function in STATISTICS.values():
        assert function(rows) == pytest.approx([float(function(row)) for row in rows])


def test_equal_to_the_librarys() -> None:
    returns = np.random.default_rng(1).normal(0.0004, 0.012, 500)
    theirs = {
        "cumulative_return": empyrical.cum_returns_final(returns),
        "annual_return": empyrical.annual_return(returns),
        "annual_volatility": empyrical.annual_volatility(returns),
        "sharpe_ratio": empyrical.sharpe_ratio(returns),
        "sortino_ratio": empyrical.sortino_ratio(returns),
        "calmar_ratio": empyrical.calmar_ratio(returns),
        "maximum_drawdown": empyrical.max_drawdown(returns),
    }
    assert {name: float(function(returns)) for name, function in STATISTICS.items()} == pytest.approx(theirs, rel=1e-9)
