"""Ex-rights dates, gaps, indicators and splits: what is done to a table before anything is
traded."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from podracer_core.errors import InvalidInput
from podracer_trading.environment import (
    Market,
    StockTrading,
    bars_needed,
    indicators_of,
    market,
    prepare,
    turbulence_of,
)
from podracer_trading.info import StockTradingConfig
from podracer_trading.market_data import PriceTable, adjusted, checked, find_ex_rights, read_table
from support.errors import raises
from support.stock_market import (
    Row,
    a_shares,
    days_of,
    market_rows,
    split_shares,
    without,
    write_csv,
)

ROWS = market_rows(4, 120, seed=2)
DAYS = days_of(ROWS)


def table_of(folder: Path, rows: list[Row]) -> PriceTable:
    return checked(read_table(str(write_csv(folder / "prices.csv", rows)), {}))


def market_of(folder: Path, rows: list[Row], **options: Any) -> Market:
    path = str(write_csv(folder / "prices.csv", rows))
    return prepare(
        StockTradingConfig(**{"table": path, "indicators": ("rsi",), **options}),
        torch.device("cpu"),
    )


def test_the_real_tables_eleven_ex_rights_dates():
    table = checked(read_table(str(a_shares()), {"ticker": "tic"}))
    found = [
        (date.ticker, str(date.time.astype("datetime64[D]")))
        for date in find_ex_rights(table, None)
    ]
    assert found == [
        ("600000.SH", "2016-06-23"),
        ("600000.SH", "2017-05-25"),
        ("600016.SH", "2018-07-05"),
        ("600276.SH", "2015-06-15"),
        ("600276.SH", "2016-06-16"),
        ("600276.SH", "2017-05-31"),
        ("600276.SH", "2018-05-30"),
        ("600276.SH", "2019-03-28"),
        ("600309.SH", "2017-05-18"),
        ("600547.SH", "2019-08-20"),
        ("600570.SH", "2019-05-15"),
    ]
    assert find_ex_rights(table, 0.10) == find_ex_rights(table, None)
    smooth = adjusted(table, None)
    close = smooth.prices[:, 3]
    move = np.where(smooth.is_first, 0.0, close / np.roll(close, 1) - 1)
    assert move.min() > -0.12  # the limit, a cash dividend too small to tell, and no more
    assert find_ex_rights(smooth, None) == []


def test_a_split_is_smoothed_as_if_it_had_not_been(tmp_path):
    """The factor is close before / open on the day, so all that is lost is what the price did over
    that night."""
    plain = table_of(tmp_path, ROWS)
    halved = split_shares(split_shares(ROWS, "AAB", DAYS[40], 2.0), "AAB", DAYS[80], 1.25)
    table = table_of(tmp_path, halved)
    first, second = find_ex_rights(table, None)
    assert (first.ticker, first.time, second.time) == (
        "AAB",
        np.datetime64(DAYS[40]),
        np.datetime64(DAYS[80]),
    )
    rows = plain.rows(1)
    night = plain.prices[rows][40, 3] / plain.prices[rows][40, 0]  # not: close before / open
    before = plain.prices[rows][39, 3] / plain.prices[rows][40, 0]
    assert first.factor == pytest.approx(2.0 * before)
    assert night != before
    found = adjusted(table, None)
    again = plain.prices[rows][79, 3] / plain.prices[rows][80, 0]
    expected = plain.prices[rows] * np.repeat([1.0, before, before * again], [40, 40, 40])[:, None]
    np.testing.assert_allclose(found.prices[rows], expected, rtol=1e-12)
    np.testing.assert_allclose(
        found.volume[rows] * found.prices[rows, 3],
        table.volume[rows] * table.prices[rows, 3],
        rtol=1e-12,
    )
    others = np.r_[0 : rows.start, rows.stop : len(plain.time)]
    assert np.array_equal(found.prices[others], plain.prices[others])


def test_a_market_that_rises_beyond_ten_per_cent_has_no_such_limit(tmp_path):
    """From the rise on the next wider limit is looked at; what the user says is believed."""
    jump = [row | {n: row[n] * 1.15 for n in ("open", "high", "low", "close")} if row["ticker"] == "AAA" and
            row["time"] >= DAYS[50] else row for row in ROWS]  # fmt: skip
    falls = split_shares(split_shares(jump, "AAC", DAYS[30], 1.2), "AAC", DAYS[70], 1.2)
    falls = split_shares(falls, "AAD", DAYS[90], 1.5)
    table = table_of(tmp_path, falls)

    def days(limit: float | None) -> list[str]:
        return [str(date.time.astype("datetime64[D]")) for date in find_ex_rights(table, limit)]

    assert days(None) == [DAYS[30], DAYS[90]]
    assert days(0.10) == [DAYS[30], DAYS[70], DAYS[90]]
    assert days(0.40) == []


def minutes(days: int, per_day: int = 40) -> list[Row]:
    """Two tickers whose price moves by little within a day, and in bars of a minute."""
    generator = np.random.default_rng(0)
    close, rows = np.array([50.0, 80.0]), []
    for bar in range(days * per_day):
        opened = close
        close = opened * np.exp(generator.normal(0, 0.001, 2))
        time = f"2020-03-{2 + bar // per_day:02} 09:{bar % per_day:02}"
        for name, start, end in zip("AB", opened, close, strict=True):
            prices = {"open": start, "high": max(start, end), "low": min(start, end), "close": end}
            rows.append({"ticker": name, "time": time, **prices, "volume": 7})
    return rows


def test_bars_of_minutes_have_the_limits_of_days(tmp_path):
    """A limit is one of the day, however small the steps in which a price gets beyond it; and
    shares go without their dividend over night only."""

    def found(rows: list[Row]) -> list[str]:
        return [str(date) for date in find_ex_rights(table_of(tmp_path, rows), None)]

    rows = minutes(5)
    assert found(rows) == []
    assert found(split_shares(rows, "A", "2020-03-05 09:20", 1.2)) == []
    halved = split_shares(rows, "A", "2020-03-05", 2.0)
    assert [date.split(" (")[0] for date in found(halved)] == ["A 2020-03-05 09:00"]
    # nothing looks ahead, within the day neither
    for last in ("2020-03-05 09:00", "2020-03-05 09:17"):
        assert found([row for row in halved if row["time"] <= last]) == found(halved)
    climbed = [row | {name: row[name] * 1.2 ** (1 + int(row["time"][-2:])) ** 0.05 for name in ("open", "high", "low",
               "close")} if row["ticker"] == "B" and row["time"] >= "2020-03-03" else row for row in rows]  # fmt: skip
    assert found(split_shares(climbed, "A", "2020-03-05", 1.2)) == []


def test_adjust_none_leaves_prices_alone(tmp_path):
    halved = split_shares(ROWS, "AAB", DAYS[40], 2.0)
    market = market_of(tmp_path, halved, adjust="none")
    assert market.report.ex_rights == ()
    expected = [row["close"] for row in halved if row["ticker"] == "AAB"]
    assert market.close[:, 1].tolist() == expected
    market = market_of(tmp_path, halved)
    assert "1 ex-rights dates smoothed: AAB 2015-03-02 (-50." in str(market.report)


GAPS = {"AAB": [*DAYS[50:53]], "AAD": [DAYS[51], DAYS[119]]}


def test_a_gap_is_an_error_by_default(tmp_path):
    with raises(
        InvalidInput, field="environment.kwargs.gaps", match=f"AAB .*{DAYS[50]}.* 4 of 120"
    ) as caught:
        market_of(tmp_path, without(ROWS, GAPS))
    assert "forward_fill" in caught.value.message
    assert "drop_day" in caught.value.message


def test_forward_fill(tmp_path):
    market = market_of(tmp_path, without(ROWS, GAPS), gaps="forward_fill")
    assert market.report.filled_bars == 5
    assert (~market.traded).nonzero().tolist() == [[50, 1], [51, 1], [51, 3], [52, 1], [119, 3]]
    assert (market.close[50:53, 1] == market.close[49, 1]).all()
    assert (market.open[50:53, 1] == market.close[49, 1]).all()
    assert torch.equal(market.features[50:53, 1], market.features[49:50, 1].expand(3, -1))


def test_drop_day(tmp_path):
    market = market_of(tmp_path, without(ROWS, GAPS), gaps="drop_day")
    assert [str(time.astype("datetime64[D]")) for time in market.report.dropped_times] == [
        *DAYS[50:53],
        DAYS[119],
    ]
    assert market.traded.all()
    assert market.close.shape == (116, 4)
    nothing = without(ROWS, {"AAA": DAYS[::2], "AAB": DAYS[1::2]})
    with raises(InvalidInput, field="environment.kwargs.gaps"):
        market_of(tmp_path, nothing, gaps="drop_day")


def test_a_halt_with_rows_of_no_volume_is_not_traded(tmp_path):
    rows = [
        row | {"volume": 0} if (row["ticker"], row["time"]) == ("AAC", DAYS[60]) else row
        for row in ROWS
    ]
    market = market_of(tmp_path, rows)
    assert (~market.traded).nonzero().tolist() == [[60, 2]]
    assert "1 bars of no volume not traded" in str(market.report)


def test_late_and_early_ends(tmp_path):
    """Nothing of a ticker is known, or traded, before its own indicators are; after its last bar it
    is never traded."""
    path = write_csv(tmp_path / "prices.csv", without(ROWS, {"AAB": DAYS[:30], "AAC": DAYS[100:]}))
    options = {"gaps": "forward_fill", "indicators": ["rsi"], "split": "all", "random_start": False}
    environment = StockTrading(1, table=path, **options)
    market = environment.market
    assert environment.bars == range(14, 120)
    assert not market.close[:30, 1].any()
    assert not market.features[:44, 1].any()
    assert market.known[:, 1].tolist() == [False] * 44 + [True] * 76
    assert market.close[99:, 2].unique().numel() == 1
    environment.reset(torch.zeros(1, dtype=torch.int64))
    held = []
    for bar in range(14, 118):
        assert int(environment.state()["state.bar"]) == bar
        before = environment.state()["state.shares"][0]
        environment.step(torch.full((1, 4), -1.0 if bar % 2 else 0.4))
        held.append(environment.state()["state.shares"][0] != before)
    changed = torch.stack(held)
    first, last = (int(changed[:, ticker].nonzero()[end]) + 14 for ticker, end in ((1, 0), (2, -1)))
    assert first == 44  # the decision on the first bar of which something is known
    assert last == 98  # it fills at the open of the last bar


def test_indicators_by_hand(tmp_path):
    """Against the textbook: the definitions of TA-Lib, written out for one ticker."""
    table = table_of(tmp_path, ROWS)
    config = StockTradingConfig(
        table="", indicators=("bollinger", "rsi", "macd", "cci", "turbulence", "adx")
    )
    assert bars_needed(config) == 34
    values = indicators_of(table, config)[table.rows(2)]
    assert np.isnan(values[:33]).all()
    assert np.isfinite(values[33:]).all()
    high, low, close = table.prices[table.rows(2), 1:].T
    for bar in (33, 60, 119):
        last = close[bar - 19 : bar + 1]
        width = 4 * last.std()
        assert values[bar, 0] == pytest.approx((close[bar] - last.mean() + width / 2) / width)
        assert values[bar, 1] == pytest.approx(relative_strength(close[: bar + 1], 14))
        typical = ((high + low + close) / 3)[bar - 13 : bar + 1]
        deviation = np.abs(typical - typical.mean()).mean()
        assert values[bar, 3] == pytest.approx((typical[-1] - typical.mean()) / (0.015 * deviation))
    difference = average(close, 12, 25) - average(close, 26, 25)
    assert values[119, 2] == pytest.approx(difference / close[119])
    assert ((values[33:, 4] > 0) & (values[33:, 4] < 100)).all()


def average(close: np.ndarray, window: int, first: int) -> float:
    """Exponential, begun with the plain average of the `window` closes up to the bar `first`."""
    value = close[first - window + 1 : first + 1].mean()
    for price in close[first + 1 :]:
        value += (price - value) * 2 / (window + 1)
    return float(value)


def relative_strength(close: np.ndarray, window: int) -> float:
    """Wilder's: averages of gains and of losses, each new one with weight 1 / window."""
    change = np.diff(close)
    gain, loss = (np.clip(sign * change, 0, None) for sign in (1, -1))
    up, down = gain[:window].mean(), loss[:window].mean()
    for more, less in zip(gain[window:], loss[window:], strict=True):
        up, down = up + (more - up) / window, down + (less - down) / window
    return float(100 * up / (up + down))


def test_a_price_that_stands_still_has_finite_indicators(tmp_path):
    flat = [
        row | dict.fromkeys(("open", "high", "low", "close"), 5.0)
        if row["ticker"] == "AAA"
        else row
        for row in ROWS
    ]
    market = market_of(
        tmp_path, flat, indicators=("macd", "rsi", "cci", "adx", "bollinger"), turbulence_window=30
    )
    assert market.features.isfinite().all()
    assert market.known[33:].all()
    assert not market.features[:, 0].any()


def test_rounding_is_no_deviation(tmp_path):
    """The mean of many equal prices is off by its last bit; a ticker that begins to move later is
    not off by 10^14."""
    prices = np.where(np.arange(120) < 100, 5.3, 5.3 * 1.01 ** (np.arange(120) - 99.0))
    bars = dict(zip(DAYS, prices.tolist(), strict=True))
    rows = [
        row | dict.fromkeys(("open", "high", "low", "close"), bars[row["time"]])
        if row["ticker"] == "AAA"
        else row
        for row in ROWS
    ]
    indicators = ("macd", "rsi", "cci", "adx", "bollinger")
    market = market_of(tmp_path, rows, indicators=indicators, train_end=DAYS[90])
    closes = market.features[33:, 0, 0].double()
    torch.testing.assert_close(closes, torch.from_numpy(prices[33:] / 5.3 - 1), atol=1e-6, rtol=0)
    assert market.features[:, 0].abs().max() < 500


def test_a_table_without_volumes_is_refused(tmp_path):
    with raises(InvalidInput, field="environment.kwargs.table"):
        market_of(tmp_path, [row | {"volume": 0} for row in ROWS])


def test_a_report_of_very_many_dates_is_cut(tmp_path):
    rows = ROWS
    for day in DAYS[20:40]:
        for ticker in ("AAA", "AAB", "AAC"):
            rows = split_shares(rows, ticker, day, 1.25)
    report = str(market_of(tmp_path, rows).report)
    assert "60 ex-rights dates smoothed: AAA 2015-02-02" in report
    assert report.count("factor") == 50
    assert "and 10 more" in report


def test_turbulence(monkeypatch):
    close = np.exp(np.random.default_rng(0).normal(0, 0.02, (70, 3)).cumsum(axis=0))
    traded = np.ones_like(close, dtype=bool)
    found = turbulence_of(close, traded, 20)
    assert np.isnan(found[:21]).all()
    returns = close[1:] / close[:-1] - 1
    for bar in (21, 50, 69):
        past = returns[bar - 21 : bar - 1]
        away = returns[bar - 1] - past.mean(axis=0)
        assert found[bar] == pytest.approx(away @ np.linalg.inv(np.cov(past, rowvar=False)) @ away)
    # A stock that is halted, or has been for most of the window, does not count, nor does one
    # without earlier bars.
    close[:, 2] = np.where(np.arange(70) < 30, 0.0, close[:, 2])
    traded[:30, 2] = False
    both, pair = turbulence_of(close, traded, 20), turbulence_of(close[:, :2], traded[:, :2], 20)
    np.testing.assert_allclose(both[21:40], pair[21:40])
    assert both[40] != pytest.approx(pair[40])  # half of the window by now
    assert np.isfinite(both[21:]).all()
    monkeypatch.setattr(market, "_BLOCK_NUMBERS", 100)  # less than one bar needs
    assert np.array_equal(turbulence_of(close, traded, 20), both, equal_nan=True)


def test_splits(tmp_path):
    market = market_of(tmp_path, ROWS, train_end=DAYS[60], validation_end=DAYS[80])
    assert market.splits == {
        "train": range(14, 61),
        "validation": range(61, 81),
        "test": range(81, 120),
        "all": range(14, 120),
    }
    months = market_of(tmp_path, ROWS, train_end="2015-03", validation_end="2015")
    assert [
        str(months.times[bar])[:10]
        for bar in (months.splits["train"][-1], months.splits["validation"][-1])
    ] == [
        "2015-03-31",
        DAYS[-1],
    ]
    market = market_of(tmp_path, ROWS)
    assert market.splits["train"] == range(14, 88)  # 70 % of 106 bars
    assert market.splits["validation"] == range(88, 104)
    assert market.splits["test"] == range(104, 120)
    assert "train from 2015-01-23 to 2015-05-06 (74 bars); validation" in str(market.report)


def test_normalizers_see_training_rows_only(tmp_path):
    market = market_of(tmp_path, ROWS, train_end=DAYS[60])
    trained = market.features[14:61].double()
    torch.testing.assert_close(
        trained.mean(0), torch.zeros(4, 2, dtype=torch.float64), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        trained.std(0, correction=0), torch.ones(4, 2, dtype=torch.float64), atol=1e-6, rtol=0
    )
    close = market.close
    expected = (close - close[14:61].mean(0)) / close[14:61].std(0, correction=0)
    torch.testing.assert_close(
        market.features[14:, :, 0].double(), expected[14:], atol=1e-5, rtol=1e-5
    )


def test_no_volatility_of_one_ticker_hides_in_another(tmp_path):
    """A table's tickers are independent but for turbulence: each one alone gives the same."""
    everyone = market_of(tmp_path, ROWS)
    for index, ticker in enumerate(everyone.tickers):
        alone = market_of(tmp_path, [row for row in ROWS if row["ticker"] == ticker])
        assert torch.equal(alone.features[:, 0], everyone.features[:, index])
    assert math.isclose(float(everyone.mean_close[0]), float(everyone.close[14:88, 0].mean()))


def test_tables_are_not_altered(tmp_path):
    table = table_of(tmp_path, split_shares(ROWS, "AAB", DAYS[40], 2.0))
    copy = replace(table, prices=table.prices.copy(), volume=table.volume.copy())
    adjusted(table, None)
    assert np.array_equal(table.prices, copy.prices)
    assert np.array_equal(table.volume, copy.volume)
