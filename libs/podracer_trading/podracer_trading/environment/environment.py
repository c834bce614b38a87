"""StockTrading-v0: N accounts that trade the K stocks of a price table.

After Yang et al. 2020, "Deep Reinforcement Learning for Automated Stock Trading: An Ensemble
Strategy", and Li et al. 2021, "FinRL-Podracer". Different here: a decision is filled at the next
bar's open, the order of the stocks plays no part, halted stocks are not traded, and nothing looks
ahead."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from podracer_core.environments import EpisodeStatistic, State, TorchEnvironment, check_time_limit
from podracer_core.random_numbers import integers, uniform
from podracer_core.statistics import bootstrap_interval
from podracer_trading.backtest import DAYS_A_YEAR, daily_returns, performance, sharpe_ratio
from podracer_trading.environment.market import (
    Market,
    check_split,
    evaluation_bars,
    prepare,
    traded_splits,
)
from podracer_trading.info import Score, StockTradingConfig

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


_TINY = 1e-9  # instead of a zero that nothing is divided by in the end


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of N accounts and what came of it; copies.

    orders   [N, K] in shares, before the broker cut them
    traded   [N, K] shares that changed hands
    price    [N, K] at which they did
    cash, value  [N] at the next bar's close
    shares   [N, K] held then
    """

    orders: Tensor
    traded: Tensor
    price: Tensor
    cash: Tensor
    shares: Tensor
    value: Tensor


class StockTrading(TorchEnvironment):
    """Buy and sell K stocks, long only, without credit.

    State: "bar" int64 [N] (indexes the market), "cash" and "value" float64 [N] (the account at the
    close of the bar), "shares" float64 [K, N] (whole numbers), and with a cool-down "rest" int32
    [K, N], the bars left of it.

    Observation float32 [N, 1 + K + K·F + …]: cash, and shares at their mean training close, both as
    parts of the initial cash; closes of all stocks, then each indicator of all stocks,
    standardized; turbulence; rest / cool_down.

    Action [N, K] in ±1: times `max_stock`, rounded toward zero, is the number of shares to buy or
    to sell.

    Reward: (account value at the close of t + 1 - at the close of t) / initial_cash * reward_scale.
    """

    graph_safe = True
    deterministic_evaluation = True
    # Called with every decision, for back-tests; not while a CUDA graph is recorded.
    watch: Callable[[Decision], object] | None = None

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = None,
        evaluation: bool = False,
        **options: Any,
    ) -> None:
        """`options` are `StockTradingConfig`'s, as JSON values.

        `max_episode_steps` limits training episodes, which else take half of the split's steps
        where they start at random, and all where not. An evaluation goes through its whole split.
        Raises InvalidInput for options and tables that cannot be right, PreconditionFailed where
        the extra `trading` is not installed."""
        check_time_limit(max_episode_steps)
        self.config = config = StockTradingConfig.from_options(options)
        self.market = market = prepare(config, torch.device(device))
        self.preparation = str(market.report)
        # Both are looked at now: training should not begin where no evaluation will be possible.
        trained, evaluated = traded_splits(config)
        bars = (
            check_split(market.splits, trained, market.times, config),
            evaluation_bars(market.splits, evaluated, market.times, config),
        )
        self.split, self.bars = (trained, evaluated)[evaluation], bars[evaluation]
        self._draws_start = config.random_start and not evaluation
        self._draws_holdings = config.random_holdings and not evaluation
        steps = len(self.bars) - 1
        if not evaluation:
            steps = min(
                steps, max_episode_steps or (max(1, steps // 2) if self._draws_start else steps)
            )
        self._set_up(market, config)
        stocks = len(market.tickers)
        size = 1 + stocks + self._features.shape[1] + (stocks if config.cool_down else 0)
        super().__init__(
            num_envs,
            device,
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32),
            action_space=gymnasium.spaces.Box(-1.0, 1.0, (stocks,), np.float32),
            max_episode_steps=steps,
        )
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)

    def initial_state(self, key: Tensor) -> State:
        """Cash alone at the first bar; in training any bar and any part of the cash in shares, as
        the options say."""
        bar = torch.full_like(key, self.bars.start)
        if self._draws_start and self.max_episode_steps is not None:
            bar += integers(key, 0, len(self.bars) - self.max_episode_steps)
        value = torch.full(
            key.shape, self.config.initial_cash, dtype=torch.float64, device=key.device
        )
        cash, shares = value.clone(), value.new_zeros(len(key), len(self.market.tickers))
        if self._draws_holdings:
            weight = (
                uniform(key[:, None], self._stock_counter)
                .double()
                .mul_(self._can_be_held.index_select(0, bar))
            )
            price = self.market.close.index_select(0, bar)
            budget = uniform(key, 1).double().mul_(value).div_(weight.sum(1).clamp_(min=_TINY))
            shares = weight.mul_(budget[:, None]).div_(price.clamp(min=_TINY)).floor_()
            cash -= (shares * price).sum(1)
        state = {"bar": bar, "cash": cash, "value": value, "shares": shares.t()}
        return state | (
            {"rest": torch.zeros_like(shares, dtype=torch.int32).t()}
            if self.config.cool_down
            else {}
        )

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Fill the orders, then go on to the next bar's close. An account never ends by itself."""
        config, bar, cash = self.config, state["bar"], state["cash"]
        # [N, K] each
        price, next_close, can_trade = (table.index_select(0, bar) for table in self._quotes)
        shares = state["shares"].t()  # they lie account after account, as the rows of the market do
        orders = action.double().clamp_(-1, 1).mul_(config.max_stock)
        if config.cool_down:
            orders.masked_fill_(state["rest"].t() > 0, 0.0)
        if self._is_turbulent is not None:
            orders = torch.where(self._is_turbulent.index_select(0, bar)[:, None], -shares, orders)
        traded = self.broker.execute(orders.mul_(can_trade), price, cash, shares)
        if config.cool_down:
            state["rest"].sub_(1).clamp_(min=0).masked_fill_(traded.t() != 0, config.cool_down)
        value = (shares * next_close).sum(1).add_(cash)
        reward = (value - state["value"]).mul_(config.reward_scale / config.initial_cash)
        state["value"].copy_(value)
        if self.watch is not None:
            self.watch(Decision(orders, traded, price, cash.clone(), shares.clone(), value))
        bar.add_(1)
        return state, reward, self._never

    def observe(self, state: State, out: Tensor) -> None:
        """See the class."""
        stocks = len(self.market.tickers)
        out[:, 0] = state["cash"] / self.config.initial_cash
        out[:, 1 : 1 + stocks] = state["shares"].t() * self._share_scale
        features = out[:, 1 + stocks : 1 + stocks + self._features.shape[1]]
        torch.index_select(self._features, 0, state["bar"], out=features)
        if self.config.cool_down:
            out[:, -stocks:] = (state["rest"] / self.config.cool_down).t()

    def episode_statistic(self, rewards: Tensor) -> EpisodeStatistic | None:
        """`score` of the account's daily returns with its interval, and the usual further
        statistics."""
        values = (
            rewards.cumsum(0)
            .div_(self.config.reward_scale)
            .add_(1)
            .mul_(self.config.initial_cash)
            .numpy()
        )
        values = np.concatenate([[self.config.initial_cash], values])
        # nothing is left to compound: rounding, as accounts are without credit
        if not (values > 0).all():
            return None
        times = self.market.times[self.bars.start : self.bars.start + len(values)]
        return statistic_of(
            daily_returns(times, values), self.config.score, self.config.reward_scale
        )

    def _set_up(self, market: Market, config: StockTradingConfig) -> None:
        """Tables whose row t holds all that a decision on bar t needs."""
        following = (
            torch.arange(len(market.times), device=market.close.device)
            .add_(1)
            .clamp_(max=len(market.times) - 1)
        )
        if config.fill == "next_open":
            price, can_trade = market.quoted[0, 1:], market.traded[following]
        else:
            price, can_trade = market.close, market.traded
        # [T, K] of a decision on each bar; the prices are the market's own, as a large one's are
        # shared by all processes
        self.fill_price, self.can_fill = price, can_trade & market.known
        self._quotes = price, market.quoted[1, 1:], self.can_fill
        self._features = market.observed
        self._can_be_held = market.known & market.traded
        self._share_scale = market.mean_close / config.initial_cash
        self._stock_counter = torch.arange(2, 2 + len(market.tickers), device=market.close.device)
        self._is_turbulent: Tensor | None = None
        if market.turbulence is not None and config.turbulence_threshold is not None:
            self._is_turbulent = market.turbulence > config.turbulence_threshold
        self.broker = Broker(config.buy_cost, config.sell_cost, config.minimum_trade)


# Keeps the cost of the last purchase, which is summed up with rounding, from exceeding the cash.
_MARGIN = 1 - 1e-12


@dataclass(frozen=True, slots=True)
class Broker:
    """Costs are fractions of the traded value. No order for fewer than `minimum_trade` shares is
    executed, but the last shares of a stock can always be sold."""

    buy_cost: float
    sell_cost: float
    minimum_trade: int

    def execute(self, orders: Tensor, price: Tensor, cash: Tensor, shares: Tensor) -> Tensor:
        """The shares that change hands, [N, K]: positive bought, negative sold. Writes `cash` [N]
        and `shares` [N, K].

        `orders` float64 [N, K] in shares, rounded toward zero; `price` [N, K]. Sales are cut to
        what is held. Purchases that together cost more than the cash are all cut by the same factor
        and rounded down, so that the order of the stocks plays no part: permuting them permutes
        what is bought."""
        sold = torch.maximum(orders.clamp(max=0.0).ceil_(), -shares)
        bought = orders.clamp(min=0.0).floor_()
        if self.minimum_trade > 1:
            sold.masked_fill_((sold > -self.minimum_trade) & (sold > -shares), 0.0)
            bought.masked_fill_(bought < self.minimum_trade, 0.0)
        cash.sub_((sold * price).sum(1), alpha=1 - self.sell_cost)
        cost = (bought * price).sum(1).mul_(1 + self.buy_cost)
        part = torch.where(cost > cash, cash / cost * _MARGIN, 1.0)
        bought.mul_(part[:, None]).floor_()
        if self.minimum_trade > 1:
            bought.masked_fill_(bought < self.minimum_trade, 0.0)
        # The subtraction rounds otherwise than `cost` did: a purchase for all of the cash might
        # overdraw its last bit.
        cash.sub_((bought * price).sum(1), alpha=1 + self.buy_cost).clamp_(min=0.0)
        traded = sold.add_(bought)
        shares.add_(traded)
        return traded
