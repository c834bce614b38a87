"""Makes prices.csv, a market of five invented stocks over 600 days: waves that an agent can learn
to ride, and noise.

    python examples/stock_trading/make_prices.py

Like real tables it has days on which a stock was halted (no row), and an unadjusted ex-rights date.
"""

from __future__ import annotations

import csv
import datetime
from pathlib import Path

import numpy as np

TICKERS = ("ACRE", "BOLT", "CORAL", "DUNE", "EMBER")
DAYS = 600
FIRST_DAY = datetime.date(2020, 1, 6)
DAILY_NOISE = 0.008
EX_RIGHTS = {"CORAL": (333, 1.3)}  # ticker: (day, shares that one becomes)
HALTS = {"BOLT": range(150, 156), "EMBER": (410, 411)}


def main() -> None:
    """Write the table beside this file."""
    generator = np.random.default_rng(0)
    day = np.arange(DAYS)[:, None]
    period = generator.uniform(40, 90, len(TICKERS))
    wave = 0.10 * np.sin(2 * np.pi * (day / period + generator.random(len(TICKERS))))
    walk = np.cumsum(generator.normal(0.0002, DAILY_NOISE, (DAYS, len(TICKERS))), axis=0)
    close = generator.uniform(10, 60, len(TICKERS)) * np.exp(wave + walk)
    opened = np.vstack([close[:1], close[:-1]]) * np.exp(generator.normal(0, 0.003, close.shape))
    high = np.maximum(opened, close) * np.exp(np.abs(generator.normal(0, 0.004, close.shape)))
    low = np.minimum(opened, close) * np.exp(-np.abs(generator.normal(0, 0.004, close.shape)))
    volume = generator.integers(100_000, 900_000, close.shape).astype(float)
    for ticker, (first, ratio) in EX_RIGHTS.items():
        column = TICKERS.index(ticker)
        for prices in (opened, high, low, close):
            prices[first:, column] /= ratio
        volume[first:, column] *= ratio
    with Path(__file__).with_name("prices.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("ticker", "time", "open", "high", "low", "close", "volume"))
        for index, date in enumerate(_weekdays(FIRST_DAY, DAYS)):
            for column, ticker in enumerate(TICKERS):
                if index not in HALTS.get(ticker, ()):
                    prices = (
                        f"{values[index, column]:.2f}" for values in (opened, high, low, close)
                    )
                    writer.writerow((ticker, date, *prices, int(volume[index, column])))


def _weekdays(first: datetime.date, count: int) -> list[datetime.date]:
    days = (first + datetime.timedelta(days=offset) for offset in range(2 * count))
    return [day for day in days if day.weekday() < 5][:count]


if __name__ == "__main__":
    main()
