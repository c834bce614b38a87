"""What a back-test says of a policy, and how certain that is."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from podracer_core.backtest.bootstrap import confidence_interval
from podracer_core.backtest.statistics import (
    DAYS_PER_YEAR,
    STATISTICS,
    cumulative_return,
    daily_returns,
    sharpe_ratio,
)
from podracer_core.environments.episode_statistic import EpisodeStatistic
from podracer_core.environments.stock_trading.settings import Score

__all__ = ["episode_statistic"]

_NORMAL_QUANTILE = 1.96


def episode_statistic(
    times: NDArray[np.datetime64], rewards: NDArray[np.float64], reward_scale: float, score: Score
) -> EpisodeStatistic:
    """Of an account's rewards [T] between the closes of the bars `times` [T + 1].

    The interval comes from a stationary block bootstrap of the returns of days; those of shorter bars are compounded.
    Who held cash alone has a ratio of 0 that is as uncertain as anybody's (Lo 2002, "The Statistics of Sharpe Ratios",
    eq. 9): otherwise nobody who risks something for a year would have a lower bound above it.
    """
    values = 1.0 + np.append(0.0, np.cumsum(rewards)) / reward_scale  # as parts of the initial cash
    returns = daily_returns(times, values)
    others = {name: float(statistic(returns)) for name, statistic in STATISTICS.items()}
    if score == "sharpe_ratio" and not others["annual_volatility"]:
        half_width = _NORMAL_QUANTILE * math.sqrt(DAYS_PER_YEAR / len(returns))
        return EpisodeStatistic(0.0, -half_width, half_width, others)
    if score == "sharpe_ratio":
        return EpisodeStatistic(others["sharpe_ratio"], *confidence_interval(returns, sharpe_ratio), others)
    lower, upper = confidence_interval(returns, cumulative_return)
    return EpisodeStatistic(float(rewards.sum()), reward_scale * lower, reward_scale * upper, others)
