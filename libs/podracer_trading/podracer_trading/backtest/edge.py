"""Whether the best of many policies has an edge over holding, or is the best by chance alone.

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
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput
from podracer_core.statistics import bootstrap_deviation
from podracer_trading.backtest.returns import DAYS_A_YEAR, sharpe_ratio

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
