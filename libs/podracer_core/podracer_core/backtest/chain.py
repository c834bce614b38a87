"""Back-tests that follow one another as one account: a walk forward.

Where one policy follows another, at a bar's close, the next one begins with the account's value in cash: what was held
is closed at that closing price, without costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from podracer_core.backtest.record import BacktestRecord, trades_csv
from podracer_core.errors import InvalidInput

__all__ = ["chained", "chained_trades_csv"]

_BY_BAR = ("times", "value", "cash", "shares", "close")
_BY_DECISION = ("filled", "orders", "traded", "price", "cost")


def chained(records: Sequence[BacktestRecord]) -> BacktestRecord:
    """All of them as one: each begins at the bar at which the one before ends, with its value.

    Raises InvalidInput where one does not, or where their tickers differ.
    """
    for number, (before, after) in enumerate(itertools.pairwise(records), 2):
        if before.tickers != after.tickers:
            raise InvalidInput(f"policy {number} trades other stocks than the one before; a walk needs the same of all")
        if before.times[-1] != after.times[0] or not np.isclose(before.value[-1], after.value[0], rtol=1e-9):
            raise InvalidInput(f"policy {number} does not begin where the one before ends: at {before.times[-1]}")

    def joined(name: str, first: int) -> NDArray[np.float64]:
        parts = [getattr(record, name) for record in records]
        return np.concatenate([parts[0], *(part[first:] for part in parts[1:])])

    return BacktestRecord(
        tickers=records[0].tickers,
        **{name: joined(name, 1) for name in _BY_BAR},  # type: ignore[arg-type]
        **{name: joined(name, 0) for name in _BY_DECISION},  # type: ignore[arg-type]
    )


def chained_trades_csv(records: Sequence[BacktestRecord]) -> str:
    """Every fill as `trades_csv` has them, and what is closed where one follows another."""
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
