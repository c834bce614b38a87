"""Ex-rights dates in unadjusted prices: found by falls over night that trading could not have made,
and smoothed.

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

from dataclasses import dataclass, replace

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
