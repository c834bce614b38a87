"""What is found in tables that are made for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from podracer_trading.market_data import Inspection, checked, inspect, read_table
from support.stock_market import Row, days_of, market_rows, split_shares, without, write_csv


def inspected(tmp_path: Path, rows: list[Row], daily_limit: float | None = None) -> Inspection:
    return inspect(checked(read_table(str(write_csv(tmp_path / "t.csv", rows)), {})), daily_limit)


def test_gaps_are_counted_in_bars_and_stretches(tmp_path):
    rows = market_rows(2, 20)
    days = days_of(rows)
    found = inspected(tmp_path, without(rows, {"AAB": [days[3], days[4], days[9], days[19]]}))
    assert (found.rows, found.bars, found.bar_length_s) == (36, 20, 86400)
    assert [(each.ticker, each.bars, each.missing, each.gaps) for each in found.tickers] == [
        ("AAA", 20, 0, 0),
        ("AAB", 16, 4, 3),
    ]


def test_bars_of_no_volume_are_counted(tmp_path):
    rows = market_rows(1, 10)
    rows[4]["volume"] = rows[7]["volume"] = 0
    assert inspected(tmp_path, rows).tickers[0].no_volume == 2


@pytest.mark.parametrize("shares", [2.0, 10.0, 0.25])
def test_splits_and_reverse_splits_are_told_by_their_ratio(tmp_path, shares):
    rows = market_rows(2, 40, volatility=0.005)
    day = days_of(rows)[25]
    found = inspected(tmp_path, split_shares(rows, "AAB", day, shares))
    assert [(each.ticker, each.time, each.shares) for each in found.splits] == [
        ("AAB", day, shares)
    ]
    assert not found.jumps


def test_a_jump_is_far_from_what_the_ticker_does(tmp_path):
    rows = market_rows(2, 200, volatility=0.005)
    day = days_of(rows)[120]
    found = inspected(tmp_path, split_shares(rows, "AAA", day, 1 / 1.3))
    assert [(each.ticker, each.time) for each in found.jumps] == [("AAA", day)]
    assert found.jumps[0].move == pytest.approx(0.3, abs=0.02)
    assert found.jumps[0].score > 10
    assert not found.splits


def test_one_bar_is_no_reason_to_divide_by_zero(tmp_path):
    found = inspected(tmp_path, market_rows(1, 1))
    assert (found.bar_length_s, found.jumps, found.splits) == (0, (), ())
    flat = market_rows(1, 10)
    for row in flat:
        row.update(dict.fromkeys(("open", "high", "low", "close"), 5.0))
    assert not inspected(tmp_path, flat).jumps
    assert np.isfinite(inspected(tmp_path, flat).bar_length_s)
