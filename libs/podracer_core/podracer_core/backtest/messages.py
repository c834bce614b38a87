"""Records as messages of bounded size, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.backtest.record import BacktestRecord
from podracer_core.errors import DataCorrupted

__all__ = ["record_from_messages", "record_to_messages"]

_NUMBERS = 1 << 17  # of a message: 1 MiB
_BY_BAR, _BY_STOCK = ("value", "cash"), ("shares", "close")
_OF_DECISIONS = ("orders", "traded", "price", "cost")

Bars = evaluator_service_pb2.BacktestBars


def record_to_messages(account: int, record: BacktestRecord) -> Iterator[Bars]:
    """All bars of a record, at most 1 MiB of numbers a message."""
    bars = len(record.times)
    step = max(1, _NUMBERS // (4 + 6 * max(1, len(record.tickers))))
    times, filled = (_microseconds(moments) for moments in (record.times, record.filled))
    for start in range(0, bars, step):
        part = slice(start, start + step)
        message = Bars(account=account, time_us=times[part].tolist(), filled_us=filled[part].tolist())
        for name in (*_BY_BAR, *_BY_STOCK, *_OF_DECISIONS):
            getattr(message, name).extend(getattr(record, name)[part].reshape(-1).tolist())
        yield message


def record_from_messages(messages: Iterable[Bars], tickers: Sequence[str], bars: int) -> BacktestRecord:
    """The record of one account, of as many bars as were announced. Raises DataCorrupted where it has others."""
    kept = list(messages)

    def joined(name: str, rows: int, columns: int | None) -> NDArray[np.float64]:
        numbers = np.concatenate([np.empty(0), *(np.fromiter(getattr(each, name), np.float64) for each in kept)])
        shape = (rows,) if columns is None else (rows, columns)
        if numbers.size != np.prod(shape):
            raise DataCorrupted(f"a back-test came with {numbers.size} numbers of {name}, not {np.prod(shape):.0f}")
        return numbers.reshape(shape)

    def moments(name: str, rows: int) -> NDArray[np.datetime64]:
        return np.array([moment for message in kept for moment in getattr(message, name)][:rows], "datetime64[us]")

    stocks = len(tickers)
    return BacktestRecord(
        tickers=tuple(tickers),
        times=moments("time_us", bars),
        filled=moments("filled_us", bars - 1),
        **{name: joined(name, bars, None) for name in _BY_BAR},
        **{name: joined(name, bars, stocks) for name in _BY_STOCK},
        **{name: joined(name, bars - 1, stocks) for name in _OF_DECISIONS},
    )


def _microseconds(moments: NDArray[np.datetime64]) -> NDArray[np.int64]:
    return moments.astype("datetime64[us]").astype(np.int64)
