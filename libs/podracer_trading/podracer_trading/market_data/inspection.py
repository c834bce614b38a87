"""Finds remarkable data in a table: missing bars, bars without volume, ex-rights dates, probable
splits, jumps. Ex-rights dates in unadjusted prices, found by falls over night that trading could
not have made, are smoothed.

On the day on which a share goes without its dividend or bonus shares its price falls by their
worth, and its holder is no poorer. In a market with a daily limit such a fall is told from a loss
by its size: no trade can open further down than the limit. Days are those of the table's times; of
bars shorter than a day, only the first of each can be one.

Prices are chained forward from the first bar of each ticker: all from an ex-rights date on are
multiplied by (close before / open on the date), and volumes divided by it. For each ticker that is
the usual back-adjusted series times one constant, but, other than there, no bar changes because of
a date that comes after it: nothing looks ahead. A share is one of the first bar's, with whatever it
has become since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from podracer_trading.market_data.table import PriceTable, moment

# Markets' daily limits. The one that holds is guessed: the least that no close has risen beyond so
# far, from the last close of the day before, as limits bind both ways and ex-rights dates only ever
# look like falls.
_LIMITS = np.array([0.10, 0.20, 0.30, 0.50])
# Limits are rounded to the price's smallest step: 1 % of a price of 1, where the step is 0.01.
_TOLERANCE = 0.005


@dataclass(frozen=True, slots=True)
class ExRightsDate:
    """One date that was smoothed: `move` is the fall over night (-0.24), `factor` what all later
    prices were multiplied by."""

    ticker: str
    time: np.datetime64
    move: float
    factor: float

    def __str__(self) -> str:
        return f"{self.ticker} {moment(self.time)} ({self.move:+.1%}, factor {self.factor:.4f})"


def find_ex_rights(table: PriceTable, daily_limit: float | None) -> list[ExRightsDate]:
    """All ex-rights dates, in the order of the table. Whether a bar is one depends on it and
    earlier bars alone."""
    rows, factors = _found(table, daily_limit)
    tickers = np.searchsorted(table.bounds, rows, side="right") - 1
    return [
        ExRightsDate(table.tickers[ticker], table.time[row], float(1 / factor - 1), float(factor))
        for ticker, row, factor in zip(tickers, rows, factors, strict=True)
    ]


def adjusted(table: PriceTable, daily_limit: float | None) -> PriceTable:
    """The table with those falls taken out; itself if there are none."""
    dates, factors = _found(table, daily_limit)
    if not len(dates):
        return table
    factor = np.ones(len(table.time))
    factor[dates] = factors
    for ticker in range(len(table.tickers)):
        rows = table.rows(ticker)
        factor[rows] = factor[rows].cumprod()
    return replace(table, prices=table.prices * factor[:, None], volume=table.volume / factor)


def _found(
    table: PriceTable, daily_limit: float | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rows of the ex-rights dates, rising, and their factors."""
    exceeded = _exceeded(table) if daily_limit is None else None
    found = [(np.zeros(0, np.int64), np.zeros(0))]
    for ticker in range(len(table.tickers)):
        opening = _openings(table, ticker)[1:]  # the first bar has none before
        before, open_ = table.prices[opening - 1, 3], table.prices[opening, 0]
        limit: float | NDArray[np.float64] = daily_limit or 0.0
        if exceeded is not None:
            limit = np.append(_LIMITS, np.inf)[np.searchsorted(exceeded, table.time[opening])]
        is_date = open_ / before - 1 < -(limit + _TOLERANCE)
        found.append((opening[is_date], before[is_date] / open_[is_date]))
    rows, factors = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(factors)


def _openings(table: PriceTable, ticker: int) -> NDArray[np.int64]:
    """The rows of the ticker's first bars of a day."""
    rows = table.rows(ticker)
    day = table.time[rows].astype("datetime64[D]")
    opening: NDArray[np.int64] = np.concatenate([[0], 1 + np.flatnonzero(day[1:] != day[:-1])])
    opening += rows.start
    return opening


def _exceeded(table: PriceTable) -> NDArray[np.datetime64]:
    """For each of `_LIMITS` the first time at which a close of the market has risen beyond it from
    the last close of the day before. Afterwards, it does not hold."""
    first = np.full(len(_LIMITS), np.iinfo(np.int64).max).astype("datetime64[us]")
    for ticker in range(len(table.tickers)):
        opening = _openings(table, ticker)
        if len(opening) < 2:
            continue
        close, end = table.prices[:, 3], table.rows(ticker).stop
        before = close[opening[1:] - 1]
        rise = np.maximum.reduceat(close[:end], opening)[1:] / before - 1
        for place, limit in enumerate(_LIMITS + _TOLERANCE):
            if not (beyond := rise > limit).any():
                break
            day = int(np.argmax(beyond))
            bars = slice(opening[day + 1], opening[day + 2] if day + 2 < len(opening) else end)
            bar = int(np.argmax(close[bars] / before[day] - 1 > limit))
            first[place] = min(first[place], table.time[bars][bar])
    return first


# A whole number of shares for one; further apart where they are many, as any ratio lies near one of
# those.
_RATIOS = np.array([2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 50, 100], dtype=np.float64)
_NEAR = 0.03
_SCORE = 10.0
_LEAST_DEVIATION = 1e-4
_TO_DEVIATION = 1.4826  # of a normal distribution: standard deviation / median absolute deviation

SPLIT_RULE = f"open / close before within {_NEAR:.0%} of 1:n or n:1"
JUMP_RULE = (
    f"log return of the close over {_SCORE:g} robust deviations (1.4826 × MAD) from the "
    "ticker's median"
)


@dataclass(frozen=True, slots=True)
class TickerBars:
    """The bars of one ticker: their number, the missing ones, the number of gaps, and bars without
    volume."""

    ticker: str
    bars: int
    missing: int
    gaps: int
    no_volume: int


@dataclass(frozen=True, slots=True)
class Split:
    """A probable split: one share became `shares`; below 1 it is a reverse split."""

    ticker: str
    time: str
    shares: float


@dataclass(frozen=True, slots=True)
class Jump:
    """A suspicious jump: the close moved by `move` (-0.2: fell by 20 %), `score` robust
    deviations."""

    ticker: str
    time: str
    move: float
    score: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """`bars` is the number of times, `bar_length_s` the most frequent distance between two; 0 if
    there is only one."""

    rows: int
    bars: int
    first: str
    last: str
    bar_length_s: float
    tickers: tuple[TickerBars, ...]
    ex_rights: tuple[ExRightsDate, ...]
    splits: tuple[Split, ...]
    jumps: tuple[Jump, ...]

    def to_plain(self) -> Mapping[str, object]:
        """The inspection as JSON values."""
        plain = asdict(self)
        for date in plain["ex_rights"]:
            date["time"] = moment(date["time"])
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in plain.items()
        }


def inspect(table: PriceTable, daily_limit: float | None) -> Inspection:
    """Inspect prices that are not adjusted."""
    times = table.axis()
    ex_rights = tuple(find_ex_rights(table, daily_limit))
    splits = _splits(table)
    explained = {(each.ticker, moment(each.time)) for each in ex_rights} | {
        (each.ticker, each.time) for each in splits
    }
    return Inspection(
        len(table.time),
        len(times),
        moment(times[0]),
        moment(times[-1]),
        _bar_length_s(times),
        tuple(_ticker_bars(table, ticker, times) for ticker in range(len(table.tickers))),
        ex_rights,
        splits,
        tuple(jump for jump in _jumps(table) if (jump.ticker, jump.time) not in explained),
    )


def _bar_length_s(times: NDArray[np.datetime64]) -> float:
    lengths, counts = np.unique(np.diff(times), return_counts=True)
    return float(lengths[np.argmax(counts)] / np.timedelta64(1, "s")) if len(lengths) else 0.0


def _ticker_bars(table: PriceTable, ticker: int, times: NDArray[np.datetime64]) -> TickerBars:
    rows = table.rows(ticker)
    lacks = np.ones(len(times), dtype=np.bool_)
    lacks[np.searchsorted(times, table.time[rows])] = False
    starts = lacks & ~np.concatenate([[False], lacks[:-1]])
    no_volume = int((table.volume[rows] == 0).sum())
    return TickerBars(
        table.tickers[ticker],
        rows.stop - rows.start,
        int(lacks.sum()),
        int(starts.sum()),
        no_volume,
    )


def _splits(table: PriceTable) -> tuple[Split, ...]:
    found = []
    for ticker, name in enumerate(table.tickers):
        rows = table.rows(ticker)
        shares = table.prices[rows, 3][:-1] / table.prices[rows, 0][1:]
        ratio = np.maximum(shares, 1 / shares)
        for place in np.flatnonzero(ratio > _RATIOS[0] * (1 - 2 * _NEAR)):
            nearest = _RATIOS[np.argmin(np.abs(ratio[place] / _RATIOS - 1))]
            if np.abs(ratio[place] / nearest - 1) <= _NEAR:
                of_one = nearest if shares[place] > 1 else 1 / nearest
                time = moment(table.time[rows.start + place + 1])
                found.append(Split(name, time, float(of_one)))
    return tuple(found)


def _jumps(table: PriceTable) -> list[Jump]:
    found = []
    for ticker, name in enumerate(table.tickers):
        rows = table.rows(ticker)
        returns = np.diff(np.log(table.prices[rows, 3]))
        if not len(returns):
            continue
        away = returns - np.median(returns)
        deviation = max(_TO_DEVIATION * float(np.median(np.abs(away))), _LEAST_DEVIATION)
        for place in np.flatnonzero(np.abs(away) > _SCORE * deviation):
            time = moment(table.time[rows.start + place + 1])
            found.append(
                Jump(name, time, float(np.expm1(returns[place])), float(away[place] / deviation))
            )
    return found
