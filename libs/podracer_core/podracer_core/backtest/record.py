"""A back-test bar by bar, and the CSV files from which its equity curve comes again."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from podracer_core.backtest.performance import Performance, daily_returns, performance
from podracer_core.errors import InvalidInput

__all__ = ["BacktestRecord", "equity_csv", "holdings_csv", "replay", "trades_csv"]

_TRADES = ("decided", "filled", "ticker", "shares", "price", "cost")


@dataclass(frozen=True, slots=True)
class BacktestRecord:
    """One account over T bars of K stocks, T ≥ 2; T - 1 decisions. Money is in the table's currency.

    tickers   [K]
    times     [T] datetime64[us]
    filled    [T - 1] datetime64[us], when the decision on each bar was filled
    value     [T] at the close of each bar
    cash      [T]
    shares    [T, K]
    close     [T, K] prices at which they count
    orders    [T - 1, K] in shares, before the broker cut them to what cash and holdings allow
    traded    [T - 1, K] shares that changed hands: positive bought, negative sold
    price     [T - 1, K] at which they did, or would have
    cost      [T - 1, K] paid beside the price
    """

    tickers: tuple[str, ...]
    times: NDArray[np.datetime64]
    filled: NDArray[np.datetime64]
    value: NDArray[np.float64]
    cash: NDArray[np.float64]
    shares: NDArray[np.float64]
    close: NDArray[np.float64]
    orders: NDArray[np.float64]
    traded: NDArray[np.float64]
    price: NDArray[np.float64]
    cost: NDArray[np.float64]

    @property
    def performance(self) -> Performance:
        """Of its daily returns."""
        return performance(daily_returns(self.times, self.value))

    @property
    def costs_paid(self) -> float:
        """All of them, in money."""
        return float(self.cost.sum())

    @property
    def turnover(self) -> float:
        """Bought and sold value together, by twice the mean account value: 1 is everything exchanged once."""
        return float((np.abs(self.traded) * self.price).sum() / (2 * self.value.mean()))


def equity_csv(record: BacktestRecord) -> str:
    """time, value, cash; numbers in full, so that they come again exactly."""
    rows = zip(map(str, record.times), record.value.tolist(), record.cash.tolist(), strict=True)
    return _csv(("time", "value", "cash"), rows)


def holdings_csv(record: BacktestRecord) -> str:
    """time, then the shares of each ticker."""
    rows = ((str(time), *held) for time, held in zip(record.times, record.shares.tolist(), strict=True))
    return _csv(("time", *record.tickers), rows)


def trades_csv(record: BacktestRecord) -> str:
    """Every fill: decided, filled, ticker, shares, price, cost, in the order of time and of the tickers."""
    rows = (
        (
            str(record.times[bar]),
            str(record.filled[bar]),
            record.tickers[stock],
            float(record.traded[bar, stock]),
            float(record.price[bar, stock]),
            float(record.cost[bar, stock]),
        )
        for bar, stock in np.argwhere(record.traded != 0)
    )
    return _csv(_TRADES, rows)


def replay(
    trades: str,
    initial_cash: float,
    tickers: Sequence[str],
    times: NDArray[np.datetime64],
    close: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The account's values [T] from its trade CSV and the closes [T, K] alone.

    Raises InvalidInput for another file, and for a trade of a ticker or at a time that is not there.
    """
    reader = csv.DictReader(io.StringIO(trades))
    if tuple(reader.fieldnames or ()) != _TRADES:
        raise InvalidInput(f"not a trade CSV: expected the columns {', '.join(_TRADES)}")
    stock = {ticker: index for index, ticker in enumerate(tickers)}
    bar = {str(time): index for index, time in enumerate(times)}
    bought, paid = np.zeros(close.shape), np.zeros(len(times))
    for number, row in enumerate(reader, 1):
        if row["ticker"] not in stock or row["decided"] not in bar or bar[row["decided"]] + 1 >= len(times):
            raise InvalidInput(f"trade {number}: no bars for {row['ticker']} after {row['decided']}")
        shares, price, cost = (float(row[name]) for name in ("shares", "price", "cost"))
        after = bar[row["decided"]] + 1
        bought[after, stock[row["ticker"]]] += shares
        paid[after] += shares * price + cost
    values: NDArray[np.float64] = initial_cash - paid.cumsum() + (bought.cumsum(axis=0) * close).sum(axis=1)
    return values


def _csv(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)
    return text.getvalue()
