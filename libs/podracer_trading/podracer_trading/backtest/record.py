"""A back-test bar by bar, and the CSV files from which its equity curve comes again."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.errors import DataCorrupted, InvalidInput
from podracer_trading.backtest.statistics import Performance, daily_returns, performance

_TRADES = ("decided", "filled", "ticker", "shares", "price", "cost")


@dataclass(frozen=True, slots=True)
class BacktestRecord:
    """One account over T bars of K stocks, T ≥ 2; T - 1 decisions. Money is in the table's
    currency.

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
        """The performance of its daily returns."""
        return performance(daily_returns(self.times, self.value))

    @property
    def costs_paid(self) -> float:
        """The sum of all costs, in money."""
        return float(self.cost.sum())

    @property
    def turnover(self) -> float:
        """Bought and sold value together, by twice the mean account value: 1 is everything
        exchanged once."""
        return float((np.abs(self.traded) * self.price).sum() / (2 * self.value.mean()))


def equity_csv(record: BacktestRecord) -> str:
    """time, value, cash; numbers in full, so that they come again exactly."""
    rows = zip(map(str, record.times), record.value.tolist(), record.cash.tolist(), strict=True)
    return _csv(("time", "value", "cash"), rows)


def holdings_csv(record: BacktestRecord) -> str:
    """time, then the shares of each ticker."""
    rows = (
        (str(time), *held) for time, held in zip(record.times, record.shares.tolist(), strict=True)
    )
    return _csv(("time", *record.tickers), rows)


def trades_csv(record: BacktestRecord) -> str:
    """Every fill: decided, filled, ticker, shares, price, cost, in the order of time and of the
    tickers."""
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

    Raises InvalidInput for another file, and for a trade of a ticker or at a time that is not
    there."""
    reader = csv.DictReader(io.StringIO(trades))
    if tuple(reader.fieldnames or ()) != _TRADES:
        raise InvalidInput(f"not a trade CSV: expected the columns {', '.join(_TRADES)}")
    stock = {ticker: index for index, ticker in enumerate(tickers)}
    bar = {str(time): index for index, time in enumerate(times)}
    bought, paid = np.zeros(close.shape), np.zeros(len(times))
    for number, row in enumerate(reader, 1):
        if (
            row["ticker"] not in stock
            or row["decided"] not in bar
            or bar[row["decided"]] + 1 >= len(times)
        ):
            raise InvalidInput(
                f"trade {number}: no bars for {row['ticker']} after {row['decided']}"
            )
        shares, price, cost = (float(row[name]) for name in ("shares", "price", "cost"))
        after = bar[row["decided"]] + 1
        bought[after, stock[row["ticker"]]] += shares
        paid[after] += shares * price + cost
    values: NDArray[np.float64] = (
        initial_cash - paid.cumsum() + (bought.cumsum(axis=0) * close).sum(axis=1)
    )
    return values


def _csv(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)
    return text.getvalue()


_NUMBERS = 1 << 17  # of a message: 1 MiB
_BY_BAR, _BY_STOCK = ("value", "cash"), ("shares", "close")
_OF_DECISIONS = ("orders", "traded", "price", "cost")

Bars = evaluator_service_pb2.BacktestBars


def record_to_messages(account: int, record: BacktestRecord) -> Iterator[Bars]:
    """All bars of a record, at most 1 MiB of numbers a message."""
    bars = len(record.times)
    step = max(1, _NUMBERS // (4 + 6 * max(1, len(record.tickers))))
    times, filled = (
        moments.astype("datetime64[us]").astype(np.int64)
        for moments in (record.times, record.filled)
    )
    for start in range(0, bars, step):
        part = slice(start, start + step)
        message = Bars(
            account=account, time_us=times[part].tolist(), filled_us=filled[part].tolist()
        )
        for name in (*_BY_BAR, *_BY_STOCK, *_OF_DECISIONS):
            getattr(message, name).extend(getattr(record, name)[part].reshape(-1).tolist())
        yield message


def record_from_messages(
    messages: Iterable[Bars], tickers: Sequence[str], bars: int
) -> BacktestRecord:
    """The record of one account, of as many bars as were announced. Raises DataCorrupted where it
    has others."""
    kept = list(messages)

    def joined(name: str, rows: int, columns: int | None) -> NDArray[np.float64]:
        numbers = np.concatenate(
            [np.empty(0), *(np.fromiter(getattr(each, name), np.float64) for each in kept)]
        )
        shape = (rows,) if columns is None else (rows, columns)
        if numbers.size != np.prod(shape):
            raise DataCorrupted(
                f"a back-test came with {numbers.size} numbers of {name}, not {np.prod(shape):.0f}"
            )
        return numbers.reshape(shape)

    def moments(name: str, rows: int) -> NDArray[np.datetime64]:
        return np.array(
            [moment for message in kept for moment in getattr(message, name)][:rows],
            "datetime64[us]",
        )

    stocks = len(tickers)
    return BacktestRecord(
        tickers=tuple(tickers),
        times=moments("time_us", bars),
        filled=moments("filled_us", bars - 1),
        **{name: joined(name, bars, None) for name in _BY_BAR},
        **{name: joined(name, bars, stocks) for name in _BY_STOCK},
        **{name: joined(name, bars - 1, stocks) for name in _OF_DECISIONS},
    )


_CHAINED_BY_BAR = ("times", "value", "cash", "shares", "close")
_CHAINED_BY_DECISION = ("filled", "orders", "traded", "price", "cost")


def chained(records: Sequence[BacktestRecord]) -> BacktestRecord:
    """All records as one: each begins at the bar at which the one before ends, with its value.

    Raises InvalidInput where one does not, or where their tickers differ.
    """
    for number, (before, after) in enumerate(itertools.pairwise(records), 2):
        if before.tickers != after.tickers:
            raise InvalidInput(
                f"policy {number} trades other stocks than the one before; a walk needs the same "
                "of all"
            )
        if before.times[-1] != after.times[0] or not np.isclose(
            before.value[-1], after.value[0], rtol=1e-9
        ):
            raise InvalidInput(
                f"policy {number} does not begin where the one before ends: at {before.times[-1]}"
            )

    def joined(name: str, first: int) -> NDArray[np.float64]:
        parts = [getattr(record, name) for record in records]
        return np.concatenate([parts[0], *(part[first:] for part in parts[1:])])

    return BacktestRecord(
        tickers=records[0].tickers,
        **{name: joined(name, 1) for name in _CHAINED_BY_BAR},  # type: ignore[arg-type]
        **{name: joined(name, 0) for name in _CHAINED_BY_DECISION},  # type: ignore[arg-type]
    )


def chained_trades_csv(records: Sequence[BacktestRecord]) -> str:
    """Every fill as in `trades_csv`, and the sales that close one record before the next."""
    texts: list[str] = []
    for record in records:
        lines = trades_csv(record).splitlines(keepends=True)
        texts += lines if not texts else lines[1:]
        if record is not records[-1]:
            texts += trades_csv(_closing(record)).splitlines(keepends=True)[1:]
    return "".join(texts)


def _closing(record: BacktestRecord) -> BacktestRecord:
    """The sale of everything at the last close, as the only decision, on the bar before."""
    sold, price = -record.shares[-1:], record.close[-1:]
    return replace(
        record,
        times=record.times[-2:],
        filled=record.times[-1:],
        orders=sold,
        traded=sold,
        price=price,
        cost=np.zeros_like(sold),
    )
