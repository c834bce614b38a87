"""The usual statistics of an account, from its daily returns. Nothing here is drawn at random,
nothing needs torch.

The conventions are empyrical's: simple returns, 252 days a year, no riskless rate, deviations
divided by n - 1 (the downside deviation by n). A ratio whose denominator is zero says nothing: it
is NaN, but Sharpe's is 0 for an account that never moves, so that such policies can be ranked."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput

DAYS_A_YEAR = 252
_STANDS_STILL = 1e-12  # a deviation of daily returns below it is rounding


@dataclass(frozen=True, slots=True)
class Performance:
    """All as parts of one: 0.1 is 10 %.

    cumulative_return   over the whole time
    annual_return       the constant yearly one that compounds to it
    annual_volatility   deviation of the daily returns, times √252
    sharpe_ratio        mean by deviation of the daily returns, times √252
    sortino_ratio       mean by the root mean square of the losses, times √252; NaN without a loss
    calmar_ratio        annual return by the largest drawdown; NaN without one
    max_drawdown        the largest fall from a peak, 0 or negative
    """

    cumulative_return: float
    annual_return: float
    annual_volatility: float
    sharpe_ratio: float
    sortino_ratio: float
    calmar_ratio: float
    max_drawdown: float

    def known(self) -> dict[str, float]:
        """The statistics by name, without those that are NaN."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class Drawdown:
    """The largest fall: `depth` (0 or negative) from `values[peak]` to `values[trough]`, made good
    at `recovery` (None: not by the end)."""

    depth: float
    peak: int
    trough: int
    recovery: int | None


def daily_returns(
    times: NDArray[np.datetime64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Simple returns [D] from an account's values [T] at `times` [T], rising; bars within a day are
    compounded.

    The first value is what the account began with: its own day counts where further bars follow in
    it. Raises InvalidInput where the two lengths differ, fewer than two values are given, or one is
    not above 0."""
    if len(times) != len(values) or len(values) < 2:
        raise InvalidInput(
            f"returns need two values or more, a time each; not {len(values)} and {len(times)} "
            "times"
        )
    if not (np.isfinite(values) & (values > 0)).all():
        bad = int(np.argmin(np.isfinite(values) & (values > 0)))
        raise InvalidInput(
            f"an account's values must be above 0; at {times[bad]} it is {values[bad]:g}"
        )
    days = times[1:].astype("datetime64[D]")
    last_of_day = np.append(days[1:] != days[:-1], True)
    at_end = np.concatenate([values[:1], values[1:][last_of_day]])
    returns: NDArray[np.float64] = at_end[1:] / at_end[:-1] - 1
    return returns


def sharpe_ratio(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Annual, over the last axis; 0 where the returns do not move or are fewer than two."""
    if returns.shape[-1] < 2:
        return np.zeros(returns.shape[:-1])
    deviation = returns.std(axis=-1, ddof=1)
    moves = deviation > _STANDS_STILL
    ratio = returns.mean(axis=-1) / np.where(moves, deviation, 1.0) * math.sqrt(DAYS_A_YEAR)
    return np.where(moves, ratio, 0.0)


def largest_drawdown(values: NDArray[np.float64]) -> Drawdown:
    """The largest drawdown of an account's values [T], above 0."""
    peaks = np.maximum.accumulate(values)
    falls = values / peaks - 1
    trough = int(np.argmin(falls))
    peak = int(np.argmax(values[: trough + 1]))
    after = np.flatnonzero(values[trough:] >= values[peak])
    return Drawdown(
        float(falls[trough]), peak, trough, trough + int(after[0]) if len(after) else None
    )


def performance(returns: NDArray[np.float64]) -> Performance:
    """The performance of daily simple returns [D], D ≥ 1. Raises InvalidInput for another shape."""
    if returns.ndim != 1 or not len(returns):
        raise InvalidInput(
            f"performance needs daily returns [D], one at least, not {list(returns.shape)}"
        )
    growth = np.cumprod(1 + returns)
    cumulative = float(growth[-1] - 1)
    annual = float(growth[-1]) ** (DAYS_A_YEAR / len(returns)) - 1
    root = math.sqrt(DAYS_A_YEAR)
    volatility = float(returns.std(ddof=1)) * root if len(returns) > 1 else 0.0
    downside = math.sqrt(float(np.square(np.minimum(returns, 0.0)).mean()))
    depth = largest_drawdown(np.concatenate([[1.0], growth])).depth
    return Performance(
        cumulative_return=cumulative,
        annual_return=annual,
        annual_volatility=volatility,
        sharpe_ratio=float(sharpe_ratio(returns)),
        sortino_ratio=float(returns.mean()) / downside * root if downside > 0 else math.nan,
        calmar_ratio=annual / -depth if depth < 0 else math.nan,
        max_drawdown=depth,
    )


def drawdowns(values: NDArray[np.float64]) -> list[Drawdown]:
    """Drawdowns of an account's values [T], above 0: each from its peak until it is made good, the
    deepest first."""
    peaks = np.maximum.accumulate(values)
    below = values < peaks
    starts = np.flatnonzero(below & ~np.append(False, below[:-1]))
    ends = np.flatnonzero(below & ~np.append(below[1:], False)) + 1
    found = []
    for start, end in zip(starts, ends, strict=True):
        recovery = int(end) if end < len(values) else None
        trough = int(start + np.argmin(values[start:end]))
        found.append(
            Drawdown(float(values[trough] / peaks[start] - 1), int(start) - 1, trough, recovery)
        )
    return sorted(found, key=lambda fall: fall.depth)


def monthly_returns(
    times: NDArray[np.datetime64], values: NDArray[np.float64]
) -> dict[tuple[int, int], float]:
    """Simple returns by (year, month), from an account's values [T] at `times` [T], rising; a month
    begins with the last value of the month before. The first value is what the account began
    with."""
    months = times.astype("datetime64[M]").astype(int)
    last = np.append(months[1:] != months[:-1], True)
    at_end, of = values[last], months[last]
    before = np.append(values[0], at_end[:-1])
    return {
        (1970 + int(month) // 12, int(month) % 12 + 1): float(end / start - 1)
        for month, start, end in zip(of, before, at_end, strict=True)
    }
