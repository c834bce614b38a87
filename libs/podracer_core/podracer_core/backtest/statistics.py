"""Statistics of an account's value, in the usual conventions: simple returns of days, 252 to a year, no riskless rate.

Ratios whose denominator is 0 are 0: an account that holds cash alone has earned nothing by risking nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DAYS_PER_YEAR",
    "STATISTICS",
    "annual_return",
    "annual_volatility",
    "calmar_ratio",
    "cumulative_return",
    "daily_returns",
    "drawdown",
    "maximum_drawdown",
    "sharpe_ratio",
    "sortino_ratio",
]

DAYS_PER_YEAR = 252
"""Trading days."""
# Relative to what is measured: below it a deviation is the rounding of an account that stands still.
_STANDS_STILL = 1e-12

Array = NDArray[np.float64]


def daily_returns(times: NDArray[np.datetime64], values: Array) -> Array:
    """Simple returns [D - 1] from the last value of each day to that of the next.

    times   [T], rising
    values  [T], of the account at these times; the first one is where the first day's return begins
    """
    day = times.astype("datetime64[D]")
    is_last = np.append(day[1:] != day[:-1], True)
    is_last[0] = True  # the value that all begins with, also where more bars of its day follow
    at_close = values[is_last]
    returns: Array = at_close[1:] / at_close[:-1] - 1.0
    return returns


def cumulative_return(returns: Array) -> Array:
    """Of all days together: [..., D] -> [...]."""
    return _growth(returns) - 1.0


def annual_return(returns: Array) -> Array:
    """The return of each year that would give the same in the end (CAGR): [..., D] -> [...]."""
    growth: Array = np.maximum(_growth(returns), 0.0) ** (DAYS_PER_YEAR / returns.shape[-1])
    return growth - 1.0


def annual_volatility(returns: Array) -> Array:
    """Sample standard deviation of a day's return, times √252: [..., D] -> [...]; 0 for fewer than two days."""
    if returns.shape[-1] < 2:
        return np.zeros(returns.shape[:-1])
    return _deviation(returns) * math.sqrt(DAYS_PER_YEAR)


def sharpe_ratio(returns: Array) -> Array:
    """Mean over sample standard deviation of a day's return, times √252 (Sharpe 1994): [..., D] -> [...]."""
    if returns.shape[-1] < 2:
        return np.zeros(returns.shape[:-1])
    return _ratio(returns.mean(axis=-1), _deviation(returns)) * math.sqrt(DAYS_PER_YEAR)


def sortino_ratio(returns: Array) -> Array:
    """Mean over the root of the mean square of losses (0 for gains), times √252 (Sortino and Price 1994)."""
    losses = np.sqrt(np.mean(np.minimum(returns, 0.0) ** 2, axis=-1))
    return _ratio(returns.mean(axis=-1), losses) * math.sqrt(DAYS_PER_YEAR)


def drawdown(returns: Array) -> Array:
    """How far below its highest value so far, as a fraction of that, 0 or less: [..., D] -> [..., D]."""
    value = np.cumprod(1.0 + returns, axis=-1)
    highest = np.maximum(np.maximum.accumulate(value, axis=-1), 1.0)
    fallen: Array = value / highest - 1.0
    return fallen


def maximum_drawdown(returns: Array) -> Array:
    """The lowest of `drawdown`: [..., D] -> [...]."""
    lowest: Array = drawdown(returns).min(axis=-1)
    return lowest


def calmar_ratio(returns: Array) -> Array:
    """Annual return over the maximum drawdown's size: [..., D] -> [...]."""
    return _ratio(annual_return(returns), -maximum_drawdown(returns))


STATISTICS: dict[str, Callable[[Array], Array]] = {
    function.__name__: function
    for function in (
        cumulative_return,
        annual_return,
        annual_volatility,
        sharpe_ratio,
        sortino_ratio,
        calmar_ratio,
        maximum_drawdown,
    )
}
"""By name, in the order in which they are shown: returns of days [..., D] -> [...]."""


def _growth(returns: Array) -> Array:
    growth: Array = np.prod(1.0 + returns, axis=-1)
    return growth


def _deviation(returns: Array) -> Array:
    deviation: Array = returns.std(axis=-1, ddof=1)
    scale = np.maximum(np.abs(returns).max(axis=-1), _STANDS_STILL)
    return np.where(deviation > _STANDS_STILL * scale, deviation, 0.0)


def _ratio(numerator: Array, denominator: Array) -> Array:
    is_risky = denominator > 0
    return np.where(is_risky, numerator / np.where(is_risky, denominator, 1.0), 0.0)
