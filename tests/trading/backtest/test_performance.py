"""Statistics of an account against numbers worked on paper."""

from __future__ import annotations

import math

import empyrical
import numpy as np
import pytest

from podracer_core.errors import InvalidInput
from podracer_trading.backtest import daily_returns, largest_drawdown, performance


def test_four_days_on_paper():
    # 100 → 110 → 99 → 99 → 108.9: returns 0.1, -0.1, 0, 0.1.
    found = performance(np.array([0.1, -0.1, 0.0, 0.1]))
    # 1.1 · 0.9 · 1 · 1.1 = 1.089; four days are 4 / 252 of a year.
    assert found.cumulative_return == pytest.approx(0.089)
    assert found.annual_return == pytest.approx(1.089**63 - 1)
    # Mean 0.025; squared deviations 0.005625 + 0.015625 + 0.000625 + 0.005625 = 0.0275, by 3.
    deviation = math.sqrt(0.0275 / 3)
    assert found.annual_volatility == pytest.approx(deviation * math.sqrt(252))
    assert found.sharpe_ratio == pytest.approx(0.025 / deviation * math.sqrt(252))
    # One loss of 0.1 in four days: √(0.01 / 4) = 0.05.
    assert found.sortino_ratio == pytest.approx(0.025 / 0.05 * math.sqrt(252))
    # From 110 to 99.
    assert found.max_drawdown == pytest.approx(-0.1)
    assert found.calmar_ratio == pytest.approx((1.089**63 - 1) / 0.1)


def test_an_account_that_never_moves():
    found = performance(np.zeros(5))
    assert found.sharpe_ratio == found.max_drawdown == found.annual_volatility == 0.0
    assert math.isnan(found.sortino_ratio)
    assert math.isnan(found.calmar_ratio)
    assert set(found.known()) == {
        "cumulative_return",
        "annual_return",
        "annual_volatility",
        "sharpe_ratio",
        "max_drawdown",
    }


def test_where_the_largest_fall_is():
    found = largest_drawdown(np.array([10.0, 12.0, 9.0, 11.0, 12.0, 13.0, 12.5]))
    assert (found.peak, found.trough, found.recovery) == (1, 2, 4)
    assert found.depth == pytest.approx(-0.25)
    assert largest_drawdown(np.array([10.0, 8.0])).recovery is None


def test_bars_of_a_day_are_compounded():
    times = np.array(
        ["2020-01-02T10:00", "2020-01-02T15:00", "2020-01-03T10:00", "2020-01-03T15:00"],
        "datetime64[us]",
    )
    # The first day's 100 → 110 counts, then 110 → 99 (by way of 120).
    assert daily_returns(times, np.array([100.0, 110.0, 120.0, 99.0])) == pytest.approx([0.1, -0.1])
    # Daily bars: the first close is what the account began with.
    days = np.array(["2020-01-02", "2020-01-03", "2020-01-06"], "datetime64[us]")
    assert daily_returns(days, np.array([100.0, 110.0, 99.0])) == pytest.approx([0.1, -0.1])


def test_what_has_no_returns_is_refused():
    days = np.array(["2020-01-02", "2020-01-03"], "datetime64[us]")
    with pytest.raises(InvalidInput, match="two values"):
        daily_returns(days[:1], np.array([1.0]))
    with pytest.raises(InvalidInput, match="2020-01-03"):
        daily_returns(days, np.array([1.0, 0.0]))
    with pytest.raises(InvalidInput, match="least"):
        performance(np.array([]))


@pytest.mark.parametrize("days", [2, 30, 500])
def test_equal_to_the_librarys(days):
    returns = np.random.default_rng(days).normal(0.0004, 0.012, days)
    theirs = {
        "cumulative_return": empyrical.cum_returns_final(returns),
        "annual_return": empyrical.annual_return(returns),
        "annual_volatility": empyrical.annual_volatility(returns),
        "sharpe_ratio": empyrical.sharpe_ratio(returns),
        "sortino_ratio": empyrical.sortino_ratio(returns),
        "calmar_ratio": empyrical.calmar_ratio(returns),
        "max_drawdown": empyrical.max_drawdown(returns),
    }
    assert performance(returns).known() == pytest.approx(theirs, rel=1e-9)
