"""What a back-test's page is made of: months, falls, paired intervals, and records on the wire."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from podracer_core.errors import DataCorrupted, InvalidInput
from podracer_core.statistics import bootstrap_interval, paired_interval
from podracer_trading.backtest import (
    BacktestRecord,
    Drawdown,
    drawdowns,
    largest_drawdown,
    monthly_returns,
    record_from_messages,
    record_to_messages,
    sharpe_ratio,
)


def test_months_by_hand():
    times = np.array(
        ["2018-12-28", "2018-12-31", "2019-01-02", "2019-01-31", "2019-03-01"], "datetime64[us]"
    )
    found = monthly_returns(times, np.array([100.0, 110.0, 99.0, 121.0, 60.5]))
    assert found == {
        (2018, 12): pytest.approx(0.10),
        (2019, 1): pytest.approx(0.10),
        (2019, 3): pytest.approx(-0.5),
    }
    assert list(found) == sorted(found)


def test_falls_by_hand():
    values = np.array([100.0, 90.0, 100.0, 120.0, 60.0, 90.0, 121.0, 120.0])
    assert drawdowns(values) == [
        Drawdown(pytest.approx(-0.5), 3, 4, 6),
        Drawdown(pytest.approx(-0.1), 0, 1, 2),
        Drawdown(pytest.approx(120 / 121 - 1), 6, 7, None),
    ]
    assert drawdowns(values)[0] == largest_drawdown(values)
    assert drawdowns(np.array([1.0, 1.0, 2.0])) == []


def test_the_deepest_fall_is_the_largest_drawdown():
    values = np.exp(np.random.default_rng(0).normal(0, 0.02, 500).cumsum())
    falls = drawdowns(values)
    assert falls[0] == largest_drawdown(values)
    assert [fall.depth for fall in falls] == sorted(fall.depth for fall in falls)


def test_paired_intervals_take_the_same_days_of_both():
    generator = np.random.default_rng(1)
    market = generator.normal(0.0005, 0.02, 500)
    better = market + 0.001 + generator.normal(0.0, 0.0005, 500)
    lower, upper = paired_interval(better, market, sharpe_ratio)
    difference = float(sharpe_ratio(better) - sharpe_ratio(market))
    assert 0.0 < lower < difference < upper
    alone = bootstrap_interval(better, sharpe_ratio)
    assert upper - lower < 0.3 * (alone[1] - alone[0]), "what both have in common falls out"
    assert paired_interval(market, market, sharpe_ratio) == (0.0, 0.0)
    assert paired_interval(market[:1], better[:1], sharpe_ratio) == (0.0, 0.0)
    with pytest.raises(InvalidInput, match="both series"):
        paired_interval(market, market[1:], sharpe_ratio)


def record(bars: int, stocks: int) -> BacktestRecord:
    generator = np.random.default_rng(2)
    times = np.datetime64("2019-01-01T09:30", "us") + np.arange(bars) * np.timedelta64(1, "m")
    by_stock = [generator.random((bars, stocks)) for _ in range(2)]
    decisions = [generator.random((bars - 1, stocks)) for _ in range(4)]
    tickers = tuple(f"t{stock}" for stock in range(stocks))
    value, cash = generator.random((2, bars))
    return BacktestRecord(tickers, times, times[1:], value, cash, *by_stock, *decisions)


@pytest.mark.parametrize(("bars", "stocks"), [(2, 1), (5000, 30), (7, 0)])
def test_a_record_comes_back_from_messages_of_bounded_size(bars, stocks):
    sent = record(bars, stocks)
    pieces = list(record_to_messages(3, sent))
    assert max(piece.ByteSize() for piece in pieces) < 1.1 * (1 << 20)
    assert {piece.account for piece in pieces} == {3}
    received = record_from_messages(pieces, sent.tickers, bars)
    for field in fields(BacktestRecord):
        np.testing.assert_array_equal(getattr(received, field.name), getattr(sent, field.name))
    with pytest.raises(DataCorrupted, match="numbers"):
        record_from_messages(pieces[:-1], sent.tickers, bars)
