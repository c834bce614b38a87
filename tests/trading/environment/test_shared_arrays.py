"""The arrays of a large table: prepared once, mapped by every process that shares the cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from podracer_platform.attachments import FileCache
from podracer_trading.environment import StockTrading, market, shared_arrays
from podracer_trading.market_data import read_table
from support.code import stored
from support.stock_market import days_of, market_rows, without, write_csv

ROWS = market_rows(4, 120, seed=2)
DAYS = days_of(ROWS)
OPTIONS = {"indicators": ["rsi", "turbulence"], "turbulence_window": 20, "gaps": "forward_fill"}


@pytest.fixture
def tables(tmp_path, monkeypatch) -> Iterator[tuple[Path, Path]]:
    """A table, and its copy that is held in a cache; they count as large."""
    monkeypatch.setattr(shared_arrays, "_LARGE_BYTES", 0)
    table = write_csv(tmp_path / "prices.csv", without(ROWS, {"AAB": DAYS[50:53]}))
    content = Path(table).read_bytes()
    file = stored(content, "prices.csv")
    with FileCache(tmp_path / "cache", 1 << 30).add(file, [content]) as held:
        yield Path(table), held.path


def made(tables: tuple[Path, Path]) -> list[Path]:
    return [path for path in tables[1].parent.iterdir() if path.name.endswith("-market")]


def test_a_market_is_prepared_once_and_is_the_same(tables, monkeypatch):
    reads: list[str] = []

    def counted(path: str, columns: dict[str, str]) -> object:
        reads.append(path)
        return read_table(path, columns)

    monkeypatch.setattr(market, "read_table", counted)
    alone = StockTrading(2, table=str(tables[0]), **OPTIONS)
    trains, evaluates, other = (
        StockTrading(2, table=str(tables[1]), **options)
        for options in (
            OPTIONS,
            OPTIONS | {"evaluation_split": "test"},
            OPTIONS | {"adjust": "none"},
        )
    )
    assert reads == [str(tables[0]), str(tables[1]), str(tables[1])], "other has other prices"
    assert len(made(tables)) == 2
    assert {str(path.stat().st_uid) for path in made(tables)} == {str(os.geteuid())}
    for name in ("observed", "quoted", "traded", "known", "mean_close", "turbulence"):
        expected = getattr(alone.market, name)
        assert torch.equal(getattr(trains.market, name), expected)
        assert torch.equal(getattr(evaluates.market, name), expected)
    ours, theirs = (str(each.market.report).partition(": ")[2] for each in (trains, alone))
    assert ours == theirs
    assert other.market.splits == alone.market.splits


def test_a_cache_without_room_shares_nothing(tables, monkeypatch):
    monkeypatch.setenv("PODRACER_CACHE_SIZE", str(tables[1].stat().st_size + 100))
    found = StockTrading(2, table=str(tables[1]), **OPTIONS)
    expected = StockTrading(2, table=str(tables[0]), **OPTIONS)
    assert made(tables) == []
    assert torch.equal(found.market.observed, expected.market.observed)
