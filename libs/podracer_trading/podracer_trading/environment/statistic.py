"""The statistic of a back-test's daily returns: a number to rank policies by, with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from podracer_core.environments import EpisodeStatistic
from podracer_core.statistics import bootstrap_interval
from podracer_trading.backtest import DAYS_A_YEAR, performance, sharpe_ratio
from podracer_trading.info import Score

_NORMAL_QUANTILE = 1.96


def statistic_of(returns: NDArray[np.float64], score: Score, scale: float) -> EpisodeStatistic:
    """`score` of daily returns [D]: the profit times `scale`, or the annual Sharpe ratio.

    The interval is the stationary bootstrap's; it is widened to hold the value itself where the
    percentiles miss it. An account that held only cash has a Sharpe ratio of 0, as uncertain as any
    other (Lo 2002, "The Statistics of Sharpe Ratios", eq. 9). Otherwise no account that takes a
    risk for a year would have a lower bound above it."""
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]] = sharpe_ratio
    if score == "profit":

        def statistic(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
            profit: NDArray[np.float64] = np.expm1(np.log1p(drawn).sum(axis=-1)) * scale
            return profit

    value = float(statistic(returns[None])[0])
    if score == "sharpe_ratio" and value == 0.0:
        half_width = _NORMAL_QUANTILE * math.sqrt(DAYS_A_YEAR / len(returns))
        lower, upper = -half_width, half_width
    else:
        lower, upper = bootstrap_interval(returns, statistic)
    return EpisodeStatistic(
        value, min(lower, value), max(upper, value), performance(returns).known()
    )
