"""What the days of a back-test say of a policy."""

from __future__ import annotations

import numpy as np
import pytest

from podracer_trading.environment import statistic_of


def test_profit_and_its_interval():
    returns = np.random.default_rng(0).normal(0.001, 0.01, 250)
    found = statistic_of(returns, "profit", 100.0)
    assert found.value == pytest.approx(100 * (np.prod(1 + returns) - 1))
    assert found.lower_bound < found.value < found.upper_bound
    assert found.statistics["sharpe_ratio"] == pytest.approx(
        statistic_of(returns, "sharpe_ratio", 100.0).value
    )


def test_cash_alone_is_as_uncertain_as_anything():
    """With an interval of no width no lower bound would be above that of a cash account."""
    still, risky = np.zeros(252), np.random.default_rng(1).normal(0.002, 0.01, 252)
    cash, trader = (statistic_of(returns, "sharpe_ratio", 100.0) for returns in (still, risky))
    assert (cash.value, cash.lower_bound, cash.upper_bound) == (
        0.0,
        pytest.approx(-1.96),
        pytest.approx(1.96),
    )
    assert trader.value > 1.0
    assert trader.lower_bound > cash.lower_bound
    assert statistic_of(still, "profit", 100.0).upper_bound == 0.0
