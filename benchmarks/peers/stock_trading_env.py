"""One trading account as a `gymnasium.Env`: the rules of StockTrading-v0 as a user would write them
down.

`StockTradingEnv` goes through the stocks one after the other, as the environments of FinRL and
ElegantRL do, with plain Python numbers, which are faster there than NumPy's. `ArrayStockTradingEnv`
has arrays over the stocks. The market is prepared as ours is, so that only the stepping is
compared; both give our numbers, as tests/trading/environment/test_peer.py shows."""

from __future__ import annotations

import math
from operator import mul
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from podracer_trading.environment import StockTrading

__all__ = ["ArrayStockTradingEnv", "StockTradingEnv"]

Array = NDArray[Any]


class StockTradingEnv(gymnasium.Env[Array, Array]):
    """An account in the market and with the knobs of `batched`, from its first bar and with cash
    alone."""

    def __init__(self, batched: StockTrading) -> None:
        market, self.config, self.bars = batched.market, batched.config, batched.bars
        self.observation_space, self.action_space = batched.observation_space, batched.action_space
        following = np.minimum(np.arange(len(market.times)) + 1, len(market.times) - 1)
        opens, closes, traded = market.open.numpy(), market.close.numpy(), market.traded.numpy()
        is_next = self.config.fill == "next_open"
        self.closes = closes
        self.prices = opens[following] if is_next else closes
        self.can_trade = market.known.numpy() & (traded[following] if is_next else traded)
        by_feature = market.features.transpose(1, 2).flatten(1).numpy()
        self.features = np.concatenate([by_feature, market.turbulence_feature.numpy()], axis=1)
        threshold, turbulence = self.config.turbulence_threshold, market.turbulence
        has_limit = turbulence is not None and threshold is not None
        self.turbulent = (
            (turbulence > threshold).tolist() if has_limit else [False] * len(market.times)
        )
        self.price_list, self.close_list = self.prices.tolist(), self.closes.tolist()
        self.can_trade_list = self.can_trade.tolist()
        self.share_scale = market.mean_close.numpy() / self.config.initial_cash
        self.stocks = len(market.tickers)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.bar = self.bars.start
        self.cash = self.config.initial_cash
        self.value = self.config.initial_cash
        self._clear()
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._trade(action)
        self.bar += 1
        value = self._account_value()
        reward = (value - self.value) * self.config.reward_scale / self.config.initial_cash
        self.value = value
        return self._observation(), reward, False, self.bar == self.bars[-1], {}

    def _clear(self) -> None:
        self.shares: Any = [0] * self.stocks
        self.rest: Any = [0] * self.stocks

    def _trade(self, action: Array) -> None:
        config, shares, price = self.config, self.shares, self.price_list[self.bar]
        can_trade, buys = self.can_trade_list[self.bar], []
        is_turbulent, cost = self.turbulent[self.bar], 0.0
        traded = [False] * self.stocks
        for stock, number in enumerate(action.tolist()):
            if not can_trade[stock]:
                continue
            wanted = (
                -shares[stock]
                if is_turbulent
                else math.trunc(max(-1.0, min(1.0, number)) * config.max_stock)
            )
            if self.rest[stock] and not is_turbulent:
                continue
            if wanted < 0 and shares[stock]:
                sold = min(-wanted, shares[stock])
                if sold >= config.minimum_trade or sold == shares[stock]:
                    shares[stock] -= sold
                    self.cash += sold * price[stock] * (1 - config.sell_cost)
                    traded[stock] = True
            elif wanted >= config.minimum_trade:
                buys.append((stock, wanted))
                cost += wanted * price[stock] * (1 + config.buy_cost)
        part = 1.0 if cost <= self.cash else self.cash / cost * (1 - 1e-12)
        for stock, wanted in buys:
            bought = math.floor(wanted * part)
            if bought and bought >= config.minimum_trade:
                shares[stock] += bought
                self.cash -= bought * price[stock] * (1 + config.buy_cost)
                traded[stock] = True
        if config.cool_down:
            self.rest = [
                config.cool_down if now else max(0, rest - 1)
                for now, rest in zip(traded, self.rest, strict=True)
            ]

    def _account_value(self) -> float:
        return self.cash + sum(map(mul, self.shares, self.close_list[self.bar]))

    def _observation(self) -> Array:
        parts = [
            [self.cash / self.config.initial_cash],
            np.multiply(self.shares, self.share_scale),
            self.features[self.bar],
        ]
        if self.config.cool_down:
            parts.append(np.asarray(self.rest) / self.config.cool_down)
        return np.concatenate(parts, dtype=np.float32)


class ArrayStockTradingEnv(StockTradingEnv):
    """The same with NumPy over the stocks: as fast as one account at a time can be in it."""

    def _clear(self) -> None:
        self.shares = np.zeros(self.stocks)
        self.rest = np.zeros(self.stocks, dtype=np.int32)

    def _trade(self, action: Array) -> None:
        config, price = self.config, self.prices[self.bar]
        wanted = np.trunc(np.clip(action, -1.0, 1.0).astype(np.float64) * config.max_stock)
        if config.cool_down:
            wanted[self.rest > 0] = 0.0
        if self.turbulent[self.bar]:
            wanted = -self.shares
        wanted = wanted * self.can_trade[self.bar]
        traded = self._sell(wanted, price) + self._buy(wanted, price)
        if config.cool_down:
            self.rest = np.where(traded != 0, config.cool_down, np.maximum(self.rest - 1, 0))

    def _account_value(self) -> float:
        return self.cash + float(self.shares @ self.closes[self.bar])

    def _sell(self, wanted: Array, price: Array) -> Array:
        sold = np.minimum(np.maximum(-wanted, 0.0), self.shares)
        if self.config.minimum_trade > 1:
            sold[(sold < self.config.minimum_trade) & (sold < self.shares)] = 0.0
        self.cash += float(sold @ price) * (1 - self.config.sell_cost)
        self.shares -= sold
        return sold

    def _buy(self, wanted: Array, price: Array) -> Array:
        bought, least = np.maximum(wanted, 0.0), self.config.minimum_trade
        if least > 1:
            bought[bought < least] = 0.0
        cost = float(bought @ price) * (1 + self.config.buy_cost)
        if cost > self.cash:
            bought = np.floor(bought * (self.cash / cost * (1 - 1e-12)))
            if least > 1:
                bought[bought < least] = 0.0
            cost = float(bought @ price) * (1 + self.config.buy_cost)
        self.cash -= cost
        self.shares += bought
        return bought
