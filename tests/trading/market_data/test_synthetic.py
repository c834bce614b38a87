"""Invented markets: the same for the same seed, and with what is asked of them."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from podracer_core.errors import InvalidInput
from podracer_trading.market_data import (
    PriceTable,
    SyntheticMarket,
    find_ex_rights,
    inspect,
    make_market,
)


def returns(table: PriceTable) -> np.ndarray:
    """[T - 1, K] log returns; every ticker has every bar."""
    return np.diff(np.log(table.prices[:, 3].reshape(len(table.tickers), -1)), axis=1).T


def test_the_seed_makes_the_market():
    one, again = (make_market(SyntheticMarket(seed=3, halts=2, ex_rights=1)) for _ in range(2))
    np.testing.assert_array_equal(one.prices, again.prices)
    np.testing.assert_array_equal(one.time, again.time)
    other = make_market(SyntheticMarket(seed=4, halts=2, ex_rights=1))
    assert one.prices[0, 0] != other.prices[0, 0]


@pytest.mark.parametrize("interval", ["day", "minute"])
def test_bars_are_consistent(interval):
    table = make_market(SyntheticMarket(tickers=4, bars=1000, interval=interval))
    opened, high, low, close = table.prices.T
    assert (high >= np.maximum(opened, close)).all()
    assert (low <= np.minimum(opened, close)).all()
    assert (low > 0).all()
    assert (table.volume > 0).all()
    assert (np.diff(table.time[table.rows(0)]) > np.timedelta64(0)).all()
    inside = ~table.is_first
    assert (opened[inside] != np.roll(close, 1)[inside]).mean() > 0.9, "they open with gaps"
    assert np.is_busday(table.time.astype("datetime64[D]")).all()


def test_minutes_begin_and_end_with_the_session():
    table = make_market(
        SyntheticMarket(tickers=1, bars=780, interval="minute", start=datetime.date(2024, 1, 6))
    )
    assert str(table.time[0]) == "2024-01-08T09:31:00.000000", "a Saturday's first bar is Monday's"
    assert str(table.time[389]) == "2024-01-08T16:00:00.000000"
    assert str(table.time[390]) == "2024-01-09T09:31:00.000000"


def test_tickers_move_together():
    correlations = np.corrcoef(
        returns(make_market(SyntheticMarket(tickers=6, bars=3000, strength=0))).T
    )
    others = correlations[~np.eye(6, dtype=bool)]
    assert others.min() > 0.1
    assert others.max() < 0.9


def test_the_strength_is_what_the_past_tells_of_the_future():
    """The correlation of a bar's return with the sum of the twenty before it."""

    def told(strength: float) -> float:
        found = returns(make_market(SyntheticMarket(tickers=8, bars=6000, strength=strength)))
        total = np.cumsum(np.vstack([np.zeros(8), found]), axis=0)
        past = total[20:-1] - total[:-21]
        return float(np.mean([np.corrcoef(past[:, k], found[20:, k])[0, 1] for k in range(8)]))

    nothing, little, much = told(0), told(0.3), told(1)
    assert abs(nothing) < 0.04
    assert nothing + 0.03 < little < much - 0.03


def test_prices_return_to_where_they_began():
    """An autoregression of order 1, whose coefficient is 1 - reversion."""
    table = make_market(SyntheticMarket(tickers=4, bars=6000, strength=0, reversion=0.2))
    level = np.cumsum(returns(table), axis=0)
    coefficients = [np.polyfit(level[:-1, k], level[1:, k], 1)[0] for k in range(4)]
    assert coefficients == pytest.approx([0.8] * 4, abs=0.03)
    assert level.std() < 0.06, "it does not grow with time"


def test_halts_and_ex_rights_dates_are_made():
    table = make_market(SyntheticMarket(tickers=3, bars=500, halts=2, ex_rights=2, seed=5))
    assert all(each.missing >= 1 for each in inspect(table, None).tickers)
    dates = find_ex_rights(table, 0.1)
    assert len(dates) == 2
    assert [each.factor for each in dates] == pytest.approx([1.3, 1.3], rel=0.1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tickers": 0}, "tickers: is 0, expected 1 to 10000"),
        ({"bars": 1}, "bars: is 1"),
        ({"interval": "hour"}, "expected day or minute"),
        ({"strength": -1.0}, "strength: is -1"),
        ({"strength": float("nan")}, "strength: is nan"),
        ({"reversion": 1.5}, "reversion: is 1.5"),
        ({"halts": 31}, "halts: is 31, expected 0 to 30"),
        ({"tickers": 10_000, "bars": 1_000_000}, "more than 200,000,000 rows"),
        ({"bars": 100, "interval": "minute", "ex_rights": 1}, "2 days at least"),
        ({"bars": 3_000_000, "tickers": 1}, "past the year 9999"),
    ],
)
def test_what_cannot_be_made_is_refused(options, told):
    with pytest.raises(InvalidInput, match=told):
        make_market(SyntheticMarket(**options))
