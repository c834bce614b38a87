"""Returns of months."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["monthly_returns"]


def monthly_returns(times: NDArray[np.datetime64], values: NDArray[np.float64]) -> dict[tuple[int, int], float]:
    """Simple returns by (year, month), from an account's values [T] at `times` [T], rising; a month begins with the
    last value of the month before. The first value is what the account began with."""
    months = times.astype("datetime64[M]").astype(int)
    last = np.append(months[1:] != months[:-1], True)
    at_end, of = values[last], months[last]
    before = np.append(values[0], at_end[:-1])
    return {
        (1970 + int(month) // 12, int(month) % 12 + 1): float(end / start - 1)
        for month, start, end in zip(of, before, at_end, strict=True)
    }
