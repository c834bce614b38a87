"""Tickers on one time axis; what happens to bars that a ticker does not have is for the user to say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput
from podracer_core.market_data.refusal import refusal
from podracer_core.market_data.table import PriceTable, moment

__all__ = ["AlignedBars", "align"]


@dataclass(frozen=True, slots=True)
class AlignedBars:
    """T bars of K tickers. Where a ticker has no bar, the last close stands for all prices; before its first, 0.

    times           [T] datetime64[us]
    open, close     [T, K] float64
    traded          [T, K] whether there was a bar, with a volume
    indicators      [T, K, I] float64, those of the last bar; NaN where not known yet
    filled_bars     how many the tickers lacked together
    dropped_times   of bars left out because some ticker lacked them
    """

    times: NDArray[np.datetime64]
    open: NDArray[np.float64]
    close: NDArray[np.float64]
    traded: NDArray[np.bool_]
    indicators: NDArray[np.float64]
    filled_bars: int
    dropped_times: NDArray[np.datetime64]


def align(table: PriceTable, indicators: NDArray[np.float64], gaps: str) -> AlignedBars:
    """Raises InvalidInput for a gap where `gaps` is error, and where drop_day would leave nothing."""
    times, bar = np.unique(table.time, return_inverse=True)
    row = np.full((len(times), len(table.tickers)), -1)
    row[bar, np.repeat(np.arange(len(table.tickers)), np.diff(table.bounds))] = np.arange(len(table.time))
    lacks = row < 0
    dropped: NDArray[np.bool_] = np.zeros(len(times), dtype=np.bool_)
    if gaps == "error" and lacks.any():
        raise _gap(table, times, lacks)
    if gaps == "drop_day":
        dropped = np.any(lacks, axis=1)
        if dropped.all():
            message = "gaps: drop_day leaves nothing, as there is no time at which all tickers have a bar"
            raise refusal("gaps", f"{message}; use forward_fill, or leave tickers out")
    times, row, lacks, dropped_times = times[~dropped], row[~dropped], lacks[~dropped], times[dropped]
    latest = np.maximum.accumulate(row, axis=0)  # rows of a ticker rise with time
    unknown = latest < 0
    open_ = np.where(lacks, table.prices[latest, 3], table.prices[latest, 0])
    return AlignedBars(
        times,
        np.where(unknown, 0.0, open_),
        np.where(unknown, 0.0, table.prices[latest, 3]),
        ~lacks & (table.volume[latest] > 0),
        np.where(unknown[:, :, None], np.nan, indicators[latest]),
        int(lacks.sum()),
        dropped_times,
    )


def _gap(table: PriceTable, times: NDArray[np.datetime64], lacks: NDArray[np.bool_]) -> InvalidInput:
    bar, ticker = np.argwhere(lacks)[0]
    count = int(lacks.any(axis=1).sum())
    message = (
        f"{table.tickers[ticker]} has no bar at {moment(times[bar])}, where others have; such gaps are on {count} of "
        f"{len(times)} bars. Choose gaps: forward_fill (that ticker is not traded there) or gaps: drop_day (nothing is)"
    )
    return refusal("gaps", message)
