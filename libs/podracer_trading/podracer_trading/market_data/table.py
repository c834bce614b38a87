"""A price table that has been checked: every row a bar of one ticker, all bars of a ticker in the
order of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput
from podracer_trading.market_data.reading import RawTable, refusal

# Relative. Prices that went through float32 may leave [low, high] by a rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class PriceTable:
    """R bars of K tickers, ticker after ticker.

    tickers   [K], sorted
    bounds    [K + 1]: the bars of ticker k are the rows bounds[k] to bounds[k + 1]
    time      [R] datetime64[us], rising within a ticker
    prices    [R, 4] float64: open, high, low, close
    volume    [R] float64
    """

    tickers: tuple[str, ...]
    bounds: NDArray[np.int64]
    time: NDArray[np.datetime64]
    prices: NDArray[np.float64]
    volume: NDArray[np.float64]

    def rows(self, ticker: int) -> slice:
        """The bars of one ticker."""
        return slice(int(self.bounds[ticker]), int(self.bounds[ticker + 1]))

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """[R], true for the first bar of each ticker."""
        first = np.zeros(len(self.time), dtype=np.bool_)
        first[self.bounds[:-1]] = True
        return first


def checked(raw: RawTable) -> PriceTable:
    """The same rows, grouped by ticker. Raises InvalidInput with the first row, ticker and time at
    which a price is impossible, or a time is a duplicate or earlier than the previous one."""
    open_, high, low, close = raw.prices.T
    for column, values in (("open", open_), ("high", high), ("low", low), ("close", close)):
        _refuse_first(raw, ~(np.isfinite(values) & (values > 0)), column, values, "a price above 0")
    _refuse_first(
        raw, ~(np.isfinite(raw.volume) & (raw.volume >= 0)), "volume", raw.volume, "0 or more"
    )
    _refuse_first(raw, high < low * (1 - _ROUNDING), "high", high, "not below low", low)
    for column, values in (("open", open_), ("close", close)):
        _refuse_first(raw, values > high * (1 + _ROUNDING), column, values, "not above high", high)
        _refuse_first(raw, values < low * (1 - _ROUNDING), column, values, "not below low", low)
    tickers, code = np.unique(raw.ticker.astype(str), return_inverse=True)
    _refuse_duplicates(raw, code)
    order = np.argsort(code, kind="stable")
    _refuse_disorder(raw, code, order)
    bounds = np.searchsorted(code[order], np.arange(len(tickers) + 1))
    return PriceTable(
        tuple(map(str, tickers)), bounds, raw.time[order], raw.prices[order], raw.volume[order]
    )


def _refuse_first(
    raw: RawTable,
    wrong: NDArray[np.bool_],
    column: str,
    values: NDArray[np.float64],
    right: str,
    bound: NDArray[np.float64] | None = None,
) -> None:
    if not wrong.any():
        return
    row = int(np.argmax(wrong))
    limit = "" if bound is None else f" ({bound[row]:g})"
    raise refusal(
        "table", f"{_place(raw, row)}: {column} is {values[row]:g}; {right}{limit} is expected"
    )


def _refuse_duplicates(raw: RawTable, code: NDArray[np.int64]) -> None:
    order = np.lexsort((raw.time, code))
    first, second = order[:-1], order[1:]
    same = (code[first] == code[second]) & (raw.time[first] == raw.time[second])
    if same.any():
        # The sort is stable, so of two equal rows the later one of the file stands second.
        index = np.flatnonzero(same)[np.argmin(second[same])]
        again = f"row {first[index] + 1} has the same ticker and time"
        raise refusal("table", f"{_place(raw, int(second[index]))} is there twice: {again}")


def _refuse_disorder(raw: RawTable, code: NDArray[np.int64], order: NDArray[np.int64]) -> None:
    before, after = order[:-1], order[1:]
    late = (code[before] == code[after]) & (raw.time[after] < raw.time[before])
    if late.any():
        index = np.flatnonzero(late)[np.argmin(after[late])]
        earlier = f"{moment(raw.time[before[index]])} (row {before[index] + 1})"
        message = (
            f"{_place(raw, int(after[index]))} comes after that ticker's {earlier}; sort "
            "the table by time"
        )
        raise refusal("table", message)


def _place(raw: RawTable, row: int) -> str:
    return f"row {row + 1} ({raw.ticker[row]}, {moment(raw.time[row])})"


def moment(time: np.datetime64) -> str:
    """The shortest text of a time."""
    text = str(time.astype("datetime64[s]")).removesuffix(":00")
    return text.removesuffix("T00:00").replace("T", " ")


@dataclass(frozen=True, slots=True)
class AlignedBars:
    """T bars of K tickers. Without a bar, all prices of a ticker are its last close; before its
    first bar, 0.

    times           [T] datetime64[us]
    open, close     [T, K] float64
    traded          [T, K] whether there was a bar, with a volume
    indicators      [T, K, I] float64, those of the last bar; NaN until they are defined
    filled_bars     total number of missing bars of all tickers
    dropped_times   times left out because a ticker had no bar
    """

    times: NDArray[np.datetime64]
    open: NDArray[np.float64]
    close: NDArray[np.float64]
    traded: NDArray[np.bool_]
    indicators: NDArray[np.float64]
    filled_bars: int
    dropped_times: NDArray[np.datetime64]


def align(table: PriceTable, indicators: NDArray[np.float64], gaps: str) -> AlignedBars:
    """Align the bars. Raises InvalidInput for a gap if `gaps` is error, and if drop_day would leave
    no bars."""
    times, bar = np.unique(table.time, return_inverse=True)
    row = np.full((len(times), len(table.tickers)), -1)
    row[bar, np.repeat(np.arange(len(table.tickers)), np.diff(table.bounds))] = np.arange(
        len(table.time)
    )
    lacks = row < 0
    dropped: NDArray[np.bool_] = np.zeros(len(times), dtype=np.bool_)
    if gaps == "error" and lacks.any():
        raise _gap(table, times, lacks)
    if gaps == "drop_day":
        dropped = np.any(lacks, axis=1)
        if dropped.all():
            message = (
                "gaps: drop_day leaves nothing, as there is no time at which all tickers have a bar"
            )
            raise refusal("gaps", f"{message}; use forward_fill, or leave tickers out")
    times, row, lacks, dropped_times = (
        times[~dropped],
        row[~dropped],
        lacks[~dropped],
        times[dropped],
    )
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


def _gap(
    table: PriceTable, times: NDArray[np.datetime64], lacks: NDArray[np.bool_]
) -> InvalidInput:
    bar, ticker = np.argwhere(lacks)[0]
    count = int(lacks.any(axis=1).sum())
    message = (
        f"{table.tickers[ticker]} has no bar at {moment(times[bar])}, where others have; such gaps "
        f"are on {count} of {len(times)} bars. Choose gaps: forward_fill (that ticker is not "
        "traded there) or gaps: drop_day (nothing is)"
    )
    return refusal("gaps", message)
