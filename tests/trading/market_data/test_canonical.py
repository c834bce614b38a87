"""The one file that a table is stored as, and bars that are added to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from podracer_core.errors import InvalidInput
from podracer_trading.environment import prepare
from podracer_trading.info import StockTradingConfig
from podracer_trading.market_data import (
    PriceTable,
    Provenance,
    append,
    checked,
    prepared,
    read_provenance,
    read_table,
    unadjusted,
    write_canonical,
)
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

AUTO = Provenance("prices.csv", "auto", None)


def table_of(tmp_path: Path, rows: list[Row]) -> PriceTable:
    return checked(read_table(str(write_csv(tmp_path / "rows.csv", rows)), {}))


def stored(tmp_path: Path, table: PriceTable, provenance: Provenance = AUTO) -> tuple[Path, str]:
    path = tmp_path / "stored.parquet"
    after, told = prepared(table, provenance)
    return path, write_canonical(after, path, told)


@pytest.fixture
def rows() -> list[Row]:
    """Ex-rights dates of two tickers, a halt."""
    rows = market_rows(3, 120)
    days = days_of(rows)
    rows = split_shares(split_shares(rows, "AAB", days[40], 1.3), "AAC", days[90], 1.5)
    return without(rows, {"AAA": days[60:63]})


def test_the_same_table_gives_the_same_bytes(tmp_path, rows):
    table = table_of(tmp_path, rows)
    path, sha256 = stored(tmp_path, table)
    content = path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == sha256
    by_ticker = sorted(rows, key=lambda row: row["ticker"])
    assert stored(tmp_path, table_of(tmp_path, by_ticker))[1] == sha256, (
        "the file's order does not matter"
    )
    assert path.read_bytes() == content


def test_what_it_says_of_itself_comes_back(tmp_path, rows):
    path, _ = stored(tmp_path, table_of(tmp_path, rows))
    found = read_provenance(path)
    assert found is not None
    days = days_of(rows)
    assert (found.source, found.adjust, found.tickers) == (
        "prices.csv",
        "auto",
        ("AAA", "AAB", "AAC"),
    )
    assert (found.rows, found.first, found.last) == (len(rows), days[0], days[-1])
    assert [(each.ticker, str(each.time)[:10]) for each in found.ex_rights] == [
        ("AAB", days[40]),
        ("AAC", days[90]),
    ]
    assert read_provenance(write_csv(tmp_path / "other.csv", rows)) is None


@pytest.mark.parametrize("source", ["invented", "a-shares"])
def test_stock_trading_sees_the_same_prices_as_in_the_source(tmp_path, rows, source):
    columns = {}
    path = write_csv(tmp_path / "source.csv", rows)
    if source == "a-shares":
        path, columns = a_shares(), {"ticker": "tic"}
    canonical, _ = stored(tmp_path, checked(read_table(str(path), columns)))
    import torch

    def market(table: Path, adjust: str, columns: dict[str, str]) -> object:
        options = {
            "table": str(table),
            "adjust": adjust,
            "columns": columns,
            "gaps": "forward_fill",
        }
        config = StockTradingConfig.from_options({**options, "indicators": []})
        return prepare(config, torch.device("cpu"))

    there, here = market(path, "auto", columns), market(canonical, "none", {})
    for name in ("open", "close", "traded", "features", "known"):
        assert torch.equal(getattr(there, name), getattr(here, name)), name


def test_adjusting_can_be_undone(tmp_path, rows):
    table = table_of(tmp_path, rows)
    after, provenance = prepared(table, AUTO)
    assert not np.allclose(after.prices, table.prices)
    before = unadjusted(after, provenance.ex_rights)
    np.testing.assert_allclose(before.prices, table.prices, rtol=1e-12)
    np.testing.assert_allclose(before.volume, table.volume, rtol=1e-12)


@pytest.mark.parametrize("adjust", ["auto", "none"])
@pytest.mark.parametrize("cut", [30, 70, 110])
def test_bars_that_are_added_make_what_the_whole_table_makes(tmp_path, rows, cut, adjust):
    days = days_of(rows)
    how = Provenance("prices.csv", adjust, None)
    former = prepared(table_of(tmp_path, [row for row in rows if row["time"] < days[cut]]), how)
    new = table_of(tmp_path, [row for row in rows if row["time"] >= days[cut - 5]])
    whole, told = prepared(table_of(tmp_path, rows), how)
    together, provenance, added = append(*former, new)
    assert added == len([row for row in rows if row["time"] >= days[cut]])
    np.testing.assert_allclose(together.prices, whole.prices, rtol=1e-12)
    np.testing.assert_array_equal(together.time, whole.time)
    assert [(each.ticker, each.time) for each in provenance.ex_rights] == [
        (each.ticker, each.time) for each in told.ex_rights
    ]
    for ticker in range(3):  # no bar that was there has changed
        old = former[0].rows(ticker)
        again = slice(together.bounds[ticker], together.bounds[ticker] + old.stop - old.start)
        np.testing.assert_array_equal(together.prices[again], former[0].prices[old])
    assert append(together, provenance, new)[2] == 0


def test_bars_that_do_not_fit_are_named(tmp_path, rows):
    days = days_of(rows)
    former = prepared(table_of(tmp_path, [row for row in rows if row["time"] < days[100]]), AUTO)
    late = [row for row in rows if row["time"] >= days[95]]
    changed = [
        row | ({"volume": 1} if (row["ticker"], row["time"]) == ("AAB", days[97]) else {})
        for row in late
    ]
    with raises(InvalidInput, match=f"AAB {days[97]}: volume"):
        append(*former, table_of(tmp_path, changed))
    other = [row | {"ticker": "NEW"} for row in late if row["ticker"] == "AAA"]
    with raises(InvalidInput, field="environment.kwargs.table"):
        append(*former, table_of(tmp_path, late + other))
    between = [market_rows(1, 120)[61]]
    with raises(InvalidInput, match=f"AAA {days_of(between)[0]}"):
        append(*former, table_of(tmp_path, between))


def test_metadata_of_another_schema_is_refused():
    with pytest.raises(InvalidInput, match="schema '9'"):
        Provenance.from_json('{"schema": "9"}')
    for damaged in ("", "[]", "{}", '{"schema": "1"}'):
        with pytest.raises(InvalidInput, match="damaged"):
            Provenance.from_json(damaged)
