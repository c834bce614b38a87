"""What a back-test's daily returns say of a policy: a number to rank by, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from podracer_core.backtest.bootstrap import bootstrap_interval
from podracer_core.backtest.performance import performance, sharpe_ratio
from podracer_core.environments.episode_statistic import EpisodeStatistic
from podracer_core.environments.stock_trading.settings import Score

__all__ = ["statistic_of"]


def statistic_of(returns: NDArray[np.float64], score: Score, scale: float) -> EpisodeStatistic:
    """`score` of daily returns [D]: the profit times `scale`, or the annual Sharpe ratio.

    The interval is the stationary bootstrap's; it is widened to hold the value itself where the percentiles miss it.
    """
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]] = sharpe_ratio
    if score == "profit":

        def statistic(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
            profit: NDArray[np.float64] = np.expm1(np.log1p(drawn).sum(axis=-1)) * scale
            return profit

    value = float(statistic(returns[None])[0])
    lower, upper = bootstrap_interval(returns, statistic)
    return EpisodeStatistic(value, min(lower, value), max(upper, value), performance(returns).known())
