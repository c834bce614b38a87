"""All falls of an account from a peak."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from podracer_core.backtest.performance import Drawdown

__all__ = ["drawdowns"]


def drawdowns(values: NDArray[np.float64]) -> list[Drawdown]:
    """Of an account's values [T], above 0: each from its peak until it is made good, the deepest first."""
    peaks = np.maximum.accumulate(values)
    below = values < peaks
    starts = np.flatnonzero(below & ~np.append(False, below[:-1]))
    ends = np.flatnonzero(below & ~np.append(below[1:], False)) + 1
    found = []
    for start, end in zip(starts, ends, strict=True):
        recovery = int(end) if end < len(values) else None
        trough = int(start + np.argmin(values[start:end]))
        found.append(Drawdown(float(values[trough] / peaks[start] - 1), int(start) - 1, trough, recovery))
    return sorted(found, key=lambda fall: fall.depth)
