"""Confidence intervals of statistics of daily returns, which need not be independent.

The stationary bootstrap of Politis and Romano 1994, "The Stationary Bootstrap": a resample is put
together from blocks of the series, which begin anywhere, have geometrically distributed lengths and
go round its end. The mean length is that of Politis and White 2004, "Automatic Block-Length
Selection for the Dependent Bootstrap", as corrected by Patton, Politis and White 2009, rounded up
to whole days so that resamples can be kept for the next policy. The same returns give the same
interval: the seed is fixed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput

RESAMPLES = 2000
_CONFIDENCE = 0.95
_SEED = 20_040_101
_NUMBERS_AT_A_TIME = 1 << 18  # of resamples: they stay in the processor's cache


def bootstrap_interval(
    returns: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> tuple[float, float]:
    """Lower and upper end of the 95 % percentile interval of `statistic`, a function of [B, D]
    returns that gives [B].

    The interval of fewer than two returns has no width: nothing can be said of it.
    """
    if len(returns) < 2:
        only = float(statistic(returns[None])[0])
        return only, only
    rows = resamples(len(returns), math.ceil(mean_block_length(returns)))
    return _interval(np.concatenate([statistic(returns[part]) for part in rows]))


def bootstrap_deviation(
    returns: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> float:
    """The standard error of `statistic`, as in `bootstrap_interval`, of two returns or more."""
    rows = resamples(len(returns), math.ceil(mean_block_length(returns)))
    return float(np.concatenate([statistic(returns[part]) for part in rows]).std())


def paired_interval(
    returns: NDArray[np.float64],
    others: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> tuple[float, float]:
    """The same of the statistic's difference between two series of the same days [D]: every
    resample takes the same days of both, in blocks as long as those of their difference need to
    be."""
    if len(returns) != len(others):
        raise InvalidInput(
            f"a paired interval needs the same days of both series, not {len(returns)} and "
            f"{len(others)}"
        )
    if len(returns) < 2:
        only = float(statistic(returns[None])[0] - statistic(others[None])[0])
        return only, only
    rows = resamples(len(returns), math.ceil(mean_block_length(returns - others)))
    return _interval(
        np.concatenate([statistic(returns[part]) - statistic(others[part]) for part in rows])
    )


def _interval(drawn: NDArray[np.float64]) -> tuple[float, float]:
    tail = (1 - _CONFIDENCE) / 2
    lower, upper = np.quantile(drawn, [tail, 1 - tail])
    return float(lower), float(upper)


@functools.lru_cache(maxsize=4)
def resamples(count: int, block_length: int) -> tuple[NDArray[np.int32], ...]:
    """The rows of `RESAMPLES` resamples of a series of `count` values, in parts [B, count]."""
    parts: list[NDArray[np.int32]] = []
    generator = np.random.default_rng(_SEED)
    place = np.arange(count)
    left = RESAMPLES
    while left:
        size = min(left, max(1, _NUMBERS_AT_A_TIME // count))
        left -= size
        begins = generator.random((size, count), dtype=np.float32) < 1 / block_length
        begins[:, 0] = True
        start = generator.integers(0, count, (size, count))
        latest = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
        rows = (np.take_along_axis(start, latest, axis=1) + place - latest) % count
        parts.append(rows.astype(np.int32))
    return tuple(parts)


def mean_block_length(values: NDArray[np.float64]) -> float:
    """The block length of the stationary bootstrap with the least mean squared error of the mean's
    variance; 1 where values do not depend on those before."""
    count = len(values)
    most = math.ceil(min(3 * math.sqrt(count), count / 3))
    centered = values - values.mean()
    variance = float(centered @ centered) / count
    if count < 4 or variance <= 1e-24:
        return 1.0
    run = max(5, math.isqrt(math.ceil(math.log10(count))))
    lags = min(math.ceil(math.sqrt(count)) + run, count - 1)
    covariance = (
        np.array([centered[lag:] @ centered[: count - lag] for lag in range(lags + 1)]) / count
    )
    width = _truncation(
        np.abs(covariance[1:] / variance), run, 2 * math.sqrt(math.log10(count) / count)
    )
    lag = np.arange(1, min(width, lags) + 1)
    weight = np.clip(2 * (1 - lag / width), 0.0, 1.0)  # the flat-top window
    slope = 2 * float(np.sum(weight * lag * covariance[lag]))
    spectrum = float(covariance[0] + 2 * np.sum(weight * covariance[lag]))
    if spectrum == 0.0:
        return float(most)
    length: float = (2 * slope**2 / (2 * spectrum**2)) ** (1 / 3) * count ** (1 / 3)
    return min(max(1.0, length), float(max(1, most)))


def _truncation(correlation: NDArray[np.float64], run: int, bound: float) -> int:
    """Twice the lag after which `run` correlations in a row (or all that are left) are
    insignificant."""
    significant = np.flatnonzero(correlation >= bound)
    last = 0
    for index in significant:
        if index - last >= run:
            break
        last = int(index) + 1
    return 2 * max(last, 1)
