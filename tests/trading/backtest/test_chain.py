"""A walk forward: back-tests that follow one another are one account."""

from __future__ import annotations

import numpy as np
import pytest

from podracer_core.errors import InvalidInput
from podracer_trading.backtest import BacktestRecord, chained, chained_trades_csv, replay

CLOSE = np.array([[10.0, 5.0], [11.0, 5.0], [12.0, 4.0], [12.0, 6.0], [15.0, 6.0]])
OPEN = CLOSE - 0.5


def account(
    first: int, last: int, cash: float, orders: list[list[float]], cost: float = 0.01
) -> BacktestRecord:
    """From bar `first` to bar `last`; decisions are filled at the next open."""
    times = np.datetime64("2019-01-01", "us") + np.arange(first, last + 1) * np.timedelta64(1, "D")
    traded, price = np.array(orders), OPEN[first + 1 : last + 1]
    costs = np.abs(traded) * price * cost
    shares = np.concatenate([np.zeros((1, 2)), traded.cumsum(0)])
    money = np.concatenate([[cash], cash - ((traded * price).sum(1) + costs.sum(1)).cumsum()])
    close = CLOSE[first : last + 1]
    value = money + (shares * close).sum(1)
    return BacktestRecord(
        ("A", "B"), times, times[1:], value, money, shares, close, traded, traded, price, costs
    )


def test_one_account_whose_fills_give_its_values_again():
    first = account(0, 2, 1000.0, [[10.0, 0.0], [0.0, 20.0]])
    second = account(2, 4, first.value[-1], [[0.0, 30.0], [5.0, -30.0]])
    both = chained([first, second])
    assert len(both.times) == 5
    assert len(both.traded) == 4
    np.testing.assert_array_equal(both.close, CLOSE)
    text = chained_trades_csv([first, second])
    assert text.count("decided") == 1
    # 10 A at 12 and 20 B at 4 are closed on the third day, decided on the second as far as the file
    # goes.
    assert "2019-01-02T00:00:00.000000,2019-01-03T00:00:00.000000,A,-10.0,12.0,0.0\n" in text
    assert "2019-01-02T00:00:00.000000,2019-01-03T00:00:00.000000,B,-20.0,4.0,0.0\n" in text
    np.testing.assert_allclose(
        replay(text, 1000.0, both.tickers, both.times, CLOSE), both.value, rtol=0, atol=1e-9
    )
    assert both.costs_paid == pytest.approx(first.costs_paid + second.costs_paid)


def test_one_alone_is_itself():
    only = account(0, 2, 1000.0, [[10.0, 0.0], [0.0, 20.0]])
    np.testing.assert_array_equal(chained([only]).value, only.value)


def test_what_does_not_follow_is_refused():
    first = account(0, 2, 1000.0, [[10.0, 0.0], [0.0, 20.0]])
    with pytest.raises(InvalidInput, match="policy 2 does"):
        chained([first, account(3, 4, first.value[-1], [[0.0, 1.0]])])
    with pytest.raises(InvalidInput, match="policy 2 does"):
        chained([first, account(2, 4, 1000.0, [[0.0, 1.0], [0.0, 1.0]])])
