"""Markets made up for tests: geometric random walks, with ex-rights dates and halts where a test
wants them."""

from __future__ import annotations

import csv
import datetime
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Row = dict[str, Any]

COLUMNS = ("ticker", "time", "open", "high", "low", "close", "volume")


def market_rows(tickers: int, bars: int, seed: int = 0, *, volatility: float = 0.015) -> list[Row]:
    """One row a ticker and day, days in order, tickers "AAA", "AAB", … in each. Prices have four
    decimals."""
    generator = np.random.default_rng(seed)
    close = generator.uniform(8, 80, tickers)
    rows = []
    for bar, day in enumerate(_weekdays(bars)):
        opened = close * np.exp(generator.normal(0, volatility / 3, tickers)) if bar else close
        close = opened * np.exp(generator.normal(0.0003, volatility, tickers))
        high = np.maximum(opened, close) * np.exp(
            np.abs(generator.normal(0, volatility / 2, tickers))
        )
        low = np.minimum(opened, close) * np.exp(
            -np.abs(generator.normal(0, volatility / 2, tickers))
        )
        volume = generator.integers(10_000, 1_000_000, tickers)
        for index in range(tickers):
            prices = {"open": opened, "high": high, "low": low, "close": close}
            rounded = {name: round(float(values[index]), 4) for name, values in prices.items()}
            rows.append(
                {"ticker": ticker_name(index), "time": day, **rounded, "volume": int(volume[index])}
            )
    return rows


def ticker_name(index: int) -> str:
    """AAA, AAB, … in alphabetical order."""
    return "A" + chr(ord("A") + index // 26) + chr(ord("A") + index % 26)


def split_shares(rows: Iterable[Row], ticker: str, day: str, ratio: float) -> list[Row]:
    """The same market where one share of `ticker` becomes `ratio` on `day`: all its later prices
    are lower by that."""
    changed = []
    for row in rows:
        if row["ticker"] == ticker and row["time"] >= day:
            prices = {name: row[name] / ratio for name in ("open", "high", "low", "close")}
            row = row | prices | {"volume": row["volume"] * ratio}
        changed.append(row)
    return changed


def without(rows: Iterable[Row], halts: Mapping[str, Iterable[str]]) -> list[Row]:
    """The same market without the rows of these tickers on these days."""
    missing = {(ticker, day) for ticker, days in halts.items() for day in days}
    return [row for row in rows if (row["ticker"], row["time"]) not in missing]


def days_of(rows: Iterable[Row]) -> list[str]:
    """All days, in order."""
    return sorted({row["time"] for row in rows})


def write_csv(path: Path, rows: Iterable[Row]) -> Path:
    """As CSV, every number with all its digits."""
    rows = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else list(COLUMNS))
        writer.writeheader()
        writer.writerows(rows)
    return path


def _weekdays(count: int) -> list[str]:
    day, days = datetime.date(2015, 1, 5), []
    while len(days) < count:
        if day.weekday() < 5:
            days.append(day.isoformat())
        day += datetime.timedelta(days=1)
    return days


def a_shares() -> Path:
    """Five years of Chinese shares, in the folder that PODRACER_TEST_DATA names: this repository
    has no real tables."""
    folder = os.environ.get("PODRACER_TEST_DATA")
    if not folder:
        pytest.skip("PODRACER_TEST_DATA is not set: the folder of china_a_shares_daily.csv")
    return Path(folder) / "china_a_shares_daily.csv"
