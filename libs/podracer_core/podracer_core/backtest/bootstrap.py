"""How certain a statistic of one history is: the stationary block bootstrap (Politis and Romano 1994).

Days follow one another in blocks of random length, which keeps what one day has to do with the next. The same history
length and block length give the same blocks, so that two policies are compared on the same days.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["RESAMPLES", "block_length", "confidence_interval", "resampled_days"]

RESAMPLES = 1000
_CONFIDENCE = 0.95
_SEED = 0

Array = NDArray[np.float64]


def confidence_interval(
    returns: Array, statistic: Callable[[Array], Array], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The two-sided 95 % percentile interval of `statistic` ([..., D] -> [...]) of one history's returns [D].

    Of fewer than three days nothing can be told: both ends are the statistic itself.
    """
    if len(returns) < 3:
        value = float(statistic(returns)) if len(returns) else 0.0
        return value, value
    days = resampled_days(len(returns), round(block_length(returns), 1), resamples)
    found = statistic(returns[days])
    lower, upper = np.quantile(found, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(lower), float(upper)


@functools.lru_cache(maxsize=8)
def resampled_days(days: int, mean_length: float, resamples: int) -> NDArray[np.int64]:
    """[resamples, days] indices: blocks of geometric length that begin anywhere and go on from the end at the start."""
    random = np.random.default_rng(_SEED)
    begins = random.random((resamples, days)) < 1.0 / mean_length
    begins[:, 0] = True
    position = np.arange(days)
    begin = np.maximum.accumulate(np.where(begins, position, 0), axis=1)
    first = np.take_along_axis(random.integers(0, days, (resamples, days)), begin, axis=1)
    found = (first + position - begin) % days
    found.setflags(write=False)
    return found


def block_length(returns: Array) -> float:
    """The mean block length that is best for the mean of a series [D], 1 at least and D / 3 or 3 √D at most.

    Politis and White 2004, "Automatic Block-Length Selection for the Dependent Bootstrap", with the correction of
    Patton, Politis and White 2009: b = (2 G² D / (2 g²))^(1/3), where g and G are sums of the autocovariances, tapered
    by a flat-top window up to the lag from which on correlations cannot be told from 0.
    """
    days = len(returns)
    most = max(1.0, min(3 * math.sqrt(days), days / 3))
    centered = returns - returns.mean()
    if not np.any(np.abs(centered) > 1e-15):
        return 1.0
    lags_looked_at = max(5, int(np.sqrt(np.log10(days))))
    longest = min(int(np.ceil(np.sqrt(days))) + lags_looked_at, days - 1)
    covariance = np.array([centered[lag:] @ centered[: days - lag] for lag in range(longest + 1)]) / days
    bound = 2 * np.sqrt(np.log10(days) / days)
    is_small = np.abs(covariance[1:] / covariance[0]) < bound
    runs = np.lib.stride_tricks.sliding_window_view(is_small, min(lags_looked_at, len(is_small))).all(axis=1)
    # Lags beyond the cut are all small; without such a run it is the last one that is not.
    cut = int(np.argmax(runs)) if runs.any() else 1 + int(np.flatnonzero(~is_small)[-1])
    window = min(2 * max(cut, 1), longest)
    lag = np.arange(1, window + 1)
    taper = np.clip(2 * (1 - lag / window), 0.0, 1.0)
    tail = taper * covariance[1 : window + 1]
    long_run = covariance[0] + 2 * tail.sum()  # g(0)
    slope = 2 * (lag * tail).sum()  # G
    if long_run <= 0:
        return float(most)
    best = (2 * slope**2 / (2 * long_run**2)) ** (1 / 3) * days ** (1 / 3)
    return float(np.clip(best, 1.0, most))
