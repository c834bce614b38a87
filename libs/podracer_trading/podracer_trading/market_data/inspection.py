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
    factor = _factors(table, daily_limit)
    names = np.repeat(np.array(table.tickers, dtype=object), np.diff(table.bounds))
    rows = np.flatnonzero(factor != 1)
    return [
        ExRightsDate(names[row], table.time[row], float(1 / factor[row] - 1), float(factor[row]))
        for row in rows
    ]


def adjusted(table: PriceTable, daily_limit: float | None) -> PriceTable:
    """The table with those falls taken out."""
    factor = _factors(table, daily_limit)
    for ticker in range(len(table.tickers)):
        rows = table.rows(ticker)
        factor[rows] = factor[rows].cumprod()
    return replace(table, prices=table.prices * factor[:, None], volume=table.volume / factor)


def _factors(table: PriceTable, daily_limit: float | None) -> NDArray[np.float64]:
    """[R], 1 but on ex-rights dates."""
    first_of_day = _first_of_day(table)
    before = np.roll(table.prices[:, 3], 1)[first_of_day]  # the close of the day before
    limit = (
        np.full(len(before), daily_limit)
        if daily_limit is not None
        else _limit_so_far(table, first_of_day)
    )
    open_ = table.prices[:, 0]
    is_first_bar = first_of_day == np.arange(len(open_))
    is_ex_rights = is_first_bar & ~table.is_first & (open_ / before - 1 < -(limit + _TOLERANCE))
    return np.where(is_ex_rights, before / open_, 1.0)


def _first_of_day(table: PriceTable) -> NDArray[np.int64]:
    """[R]: the row of the ticker's first bar on that day."""
    day = table.time.astype("datetime64[D]")
    starts = table.is_first | (day != np.roll(day, 1))
    return np.maximum.accumulate(np.where(starts, np.arange(len(day)), 0))


def _limit_so_far(table: PriceTable, first_of_day: NDArray[np.int64]) -> NDArray[np.float64]:
    """[R]: the limit that the whole market has kept on all bars before; infinite where it has kept
    none."""
    close = table.prices[:, 3]
    rise = np.where(table.is_first[first_of_day], 0.0, close / np.roll(close, 1)[first_of_day] - 1)
    times, bar = np.unique(table.time, return_inverse=True)
    highest = np.zeros(len(times))
    np.maximum.at(highest, bar, rise)
    so_far = np.concatenate([[0.0], np.maximum.accumulate(highest)[:-1]])
    return np.append(_LIMITS, np.inf)[np.searchsorted(_LIMITS + _TOLERANCE, so_far)][bar]


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
    times = np.unique(table.time)
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
    before = np.roll(table.prices[:, 3], 1)
    shares = np.where(table.is_first, 1.0, before / table.prices[:, 0])
    ratio = np.maximum(shares, 1 / shares)
    nearest = (
        _RATIOS[np.argmin(np.abs(ratio[:, None] / _RATIOS - 1), axis=1)] if len(ratio) else ratio
    )
    rows = np.flatnonzero(np.abs(ratio / nearest - 1) <= _NEAR)
    of_one = np.where(shares > 1, nearest, 1 / nearest)
    tickers = np.searchsorted(table.bounds, rows, side="right") - 1
    return tuple(
        Split(table.tickers[ticker], moment(table.time[row]), float(of_one[row]))
        for ticker, row in zip(tickers, rows, strict=True)
    )


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
