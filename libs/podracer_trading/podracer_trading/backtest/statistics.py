"""The usual statistics of an account, from its daily returns; and whether the best of many policies
has an edge over holding. Nothing here is drawn at random, nothing needs torch.

The conventions are empyrical's: simple returns, 252 days a year, no riskless rate, deviations
divided by n - 1 (the downside deviation by n). A ratio whose denominator is zero says nothing: it
is NaN, but Sharpe's is 0 for an account that never moves, so that such policies can be ranked.

Of many policies without an edge the best still looks good. What counts is the excess: a policy's
daily return minus that of holding. Without an edge its Sharpe ratio by the day, S, divided by its
standard error, z = S / e, is about standard normal. Over D days e is the greatest of three:

    1 / sqrt(D - 1)                                               of independent normal returns
                                                                  without an edge
    sqrt(1 - g3 S + (g4 - 1) / 4 S²) / sqrt(D - 1)                with their skewness g3 and
                                                                  kurtosis g4
    the deviation of S in a stationary bootstrap of the days      with their dependence

The second is from Bailey and López de Prado 2014, "The Deflated Sharpe Ratio", as are the number of
independent trials, N = r + (1 - r) M, for M trials whose excess returns have the average
correlation r, and the expected maximum of N such z, with Euler's constant c and the normal quantile
Q:

    (1 - c) Q(1 - 1 / N) + c Q(1 - 1 / (N exp(1)))

Different from the paper: the p-value is the probability that the greatest of N such z is z or more,
1 - F(z)^N with the normal F. One minus the paper's F(z - expected maximum) is 0.05 or less in about
1 % of the searches without an edge, not in 5 %, if N is 10 or more; so it misses more edges.
`benchmarks/false_claims.py` counts false and true ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput
from podracer_core.statistics import bootstrap_deviation

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


SIGNIFICANT = 0.05
"""The greatest p-value of an edge."""
LEAST_DAYS = 20
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Edge:
    """Sharpe ratios are a year's.

    excess_sharpe_ratio  of the daily returns above those of holding
    trials               policies among which the policy was chosen
    independent_trials   as many independent ones have as good a best; 1 to `trials`
    luck_sharpe_ratio    that the best of so many independent ones without an edge is expected to
                         have
    p_value              probability that this best has `excess_sharpe_ratio` or more
    """

    excess_sharpe_ratio: float
    trials: int
    independent_trials: float
    luck_sharpe_ratio: float
    p_value: float

    @property
    def is_there(self) -> bool:
        """Whether the policy has an edge over holding."""
        return self.p_value <= SIGNIFICANT


def edge_over_holding(
    chosen: NDArray[np.float64],
    holding: NDArray[np.float64],
    others: NDArray[np.float64],
    trials: int,
) -> Edge:
    """The edge of the chosen policy, from daily returns [D] of it and of holding, and [K, D] of
    others that competed.

    `trials` is the number of all policies among which it was chosen, 1 + K at least. Raises
    InvalidInput for fewer than `LEAST_DAYS` days, or for other days of one than of the others."""
    days = len(chosen)
    if days < LEAST_DAYS or holding.shape != (days,) or others.shape[1:] != (days,):
        shapes = ", ".join(str(list(each.shape)) for each in (chosen, holding, others))
        raise InvalidInput(
            f"an edge over holding shows in {LEAST_DAYS} days or more, the same of all, not "
            f"{shapes}"
        )
    excess = np.vstack([chosen, others]) - holding
    trials = max(trials, len(excess))
    independent = independent_trials(excess, trials)
    ratio, error = float(sharpe_ratio(excess[0])), _standard_error(excess[0])
    luck = expected_maximum(independent) * error
    return Edge(ratio, trials, independent, luck, 1.0 - _NORMAL.cdf(ratio / error) ** independent)


def independent_trials(excess: NDArray[np.float64], trials: int) -> float:
    """How many independent policies have a best like that of `trials` policies, some of which have
    the excess returns [K, D]. A policy that does as holding does correlates with none."""
    count = len(excess)
    if count < 2:
        return float(trials)
    centered = excess - excess.mean(axis=1, keepdims=True)
    length = np.sqrt(np.square(centered).sum(axis=1, keepdims=True))
    unit = centered / np.where(length > 0, length, 1.0)
    together = unit @ unit.T
    correlation = (together.sum() - together.trace()) / (count * (count - 1))
    correlation = min(1.0, max(0.0, float(correlation)))
    return correlation + (1.0 - correlation) * trials


def expected_maximum(count: float) -> float:
    """Of `count` independent standard normal numbers, about; 0 for 1."""
    if count <= 1.0:
        return 0.0
    often, seldom = (_NORMAL.inv_cdf(1.0 - 1.0 / (count * factor)) for factor in (1.0, math.e))
    return max(0.0, (1.0 - np.euler_gamma) * often + np.euler_gamma * seldom)


def _standard_error(excess: NDArray[np.float64]) -> float:
    """Of the yearly Sharpe ratio of [D] returns, as the module says."""
    factor, daily = 1.0, float(sharpe_ratio(excess)) / math.sqrt(DAYS_A_YEAR)
    if daily:  # they move
        standard = (excess - excess.mean()) / excess.std()
        skewness, kurtosis = (float(np.mean(standard**power)) for power in (3, 4))
        factor = math.sqrt(max(1.0, 1.0 - skewness * daily + (kurtosis - 1.0) / 4.0 * daily**2))
    least = factor * math.sqrt(DAYS_A_YEAR / (len(excess) - 1))
    return max(least, bootstrap_deviation(excess, sharpe_ratio))
