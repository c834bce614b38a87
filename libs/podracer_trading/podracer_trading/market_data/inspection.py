"""Finds remarkable data in a table: missing bars, bars without volume, ex-rights dates, probable
splits, jumps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from podracer_trading.market_data.ex_rights import ExRightsDate, find_ex_rights
from podracer_trading.market_data.table import PriceTable, moment

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
        return {
            "rows": self.rows,
            "bars": self.bars,
            "first": self.first,
            "last": self.last,
            "bar_length_s": self.bar_length_s,
            "tickers": [
                {
                    "ticker": each.ticker,
                    "bars": each.bars,
                    "missing": each.missing,
                    "gaps": each.gaps,
                }
                | {"no_volume": each.no_volume}
                for each in self.tickers
            ],
            "ex_rights": [
                {
                    "ticker": each.ticker,
                    "time": moment(each.time),
                    "move": each.move,
                    "factor": each.factor,
                }
                for each in self.ex_rights
            ],
            "splits": [
                {"ticker": each.ticker, "time": each.time, "shares": each.shares}
                for each in self.splits
            ],
            "jumps": [
                {"ticker": each.ticker, "time": each.time, "move": each.move, "score": each.score}
                for each in self.jumps
            ],
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
    return tuple(
        Split(_ticker(table, int(row)), moment(table.time[row]), float(of_one[row])) for row in rows
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


def _ticker(table: PriceTable, row: int) -> str:
    return table.tickers[int(np.searchsorted(table.bounds, row, side="right")) - 1]
