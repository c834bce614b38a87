"""Stock trading in plain Python: one account, one stock after the other, nothing shared with the
code under test.

A market here is what a reader of the rules would make of the table: for each day and ticker the
open and the close after ex-rights dates have been chained, whether there was a bar, and the
turbulence."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass
class PlainMarket:
    """open[ticker][day] and so on; where a ticker has no bar its last close stands, and it has not
    traded."""

    tickers: list[str]
    days: list[str]
    open: dict[str, dict[str, float]] = field(default_factory=dict)
    close: dict[str, dict[str, float]] = field(default_factory=dict)
    traded: dict[str, dict[str, bool]] = field(default_factory=dict)


def plain_market(
    path: Path, ticker_column: str = "ticker", daily_limit: float = 0.10
) -> PlainMarket:
    """Read a CSV table, chain ex-rights dates forward, fill gaps."""
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            bar = (float(row["open"]), float(row["close"]))
            rows.setdefault(row[ticker_column], {})[row["time"]] = bar
    tickers, days = sorted(rows), sorted({day for bars in rows.values() for day in bars})
    market = PlainMarket(tickers, days)
    for ticker in tickers:
        opens, closes, traded = ({}, {}, {})
        factor, before = 1.0, None
        for day in days:
            bar = rows[ticker].get(day)
            traded[day] = bar is not None
            if bar is not None:
                if before is not None and bar[0] / before - 1 < -(daily_limit + 0.005):
                    factor *= before / bar[0]
                before = bar[1]
                opens[day], closes[day] = bar[0] * factor, bar[1] * factor
            else:
                opens[day] = closes[day] = before * factor if before is not None else 0.0
        market.open[ticker], market.close[ticker], market.traded[ticker] = opens, closes, traded
    return market


def plain_turbulence(market: PlainMarket, day: int, window: int) -> float:
    """The squared Mahalanobis distance, for a market without gaps."""
    close = [[market.close[ticker][name] for ticker in market.tickers] for name in market.days]
    returns = [
        [b / a - 1 for a, b in zip(close[i - 1], close[i], strict=True)] for i in range(1, day + 1)
    ]
    past, today = np.array(returns[-1 - window : -1]), np.array(returns[-1])
    away = today - past.mean(axis=0)
    return float(away @ np.linalg.inv(np.cov(past, rowvar=False)) @ away)


@dataclass
class PlainRules:
    """As the knobs of the environment, with its defaults."""

    initial_cash: float = 1_000_000.0
    max_stock: int = 100
    buy_cost: float = 0.001
    sell_cost: float = 0.001
    minimum_trade: int = 1
    cool_down: int = 0
    same_close: bool = False
    reward_scale: float = 100.0


class PlainAccount:
    """One account at the close of a day."""

    def __init__(
        self, market: PlainMarket, rules: PlainRules, day: int, cash: float, shares: list[float]
    ) -> None:
        self.market, self.rules, self.day, self.cash = market, rules, day, cash
        self.shares = dict(zip(market.tickers, shares, strict=True))
        self.rest = dict.fromkeys(market.tickers, 0)

    def value(self) -> float:
        day = self.market.days[self.day]
        return self.cash + math.fsum(
            self.shares[ticker] * self.market.close[ticker][day] for ticker in self.shares
        )

    def step(self, action: list[float], turbulent: bool = False) -> float:
        """Trade, go on to the next day's close, and return the reward."""
        market, rules, before = self.market, self.rules, self.value()
        today, tomorrow = market.days[self.day], market.days[self.day + 1]
        fill_day = today if rules.same_close else tomorrow
        price = {
            ticker: (market.close if rules.same_close else market.open)[ticker][fill_day]
            for ticker in self.shares
        }
        orders = {}
        for ticker, number in zip(market.tickers, action, strict=True):
            wanted = math.trunc(max(-1.0, min(1.0, number)) * rules.max_stock)
            if self.rest[ticker] > 0:
                wanted = 0
            if turbulent:
                wanted = -self.shares[ticker]
            orders[ticker] = wanted if market.traded[ticker][fill_day] else 0
        changed = set()
        for ticker, wanted in orders.items():
            sold = min(-wanted, self.shares[ticker])
            if sold > 0 and (sold >= rules.minimum_trade or sold == self.shares[ticker]):
                self.shares[ticker] -= sold
                self.cash += sold * price[ticker] * (1 - rules.sell_cost)
                changed.add(ticker)
        buys = {
            ticker: wanted
            for ticker, wanted in orders.items()
            if wanted > 0 and wanted >= rules.minimum_trade
        }
        cost = math.fsum(
            wanted * price[ticker] * (1 + rules.buy_cost) for ticker, wanted in buys.items()
        )
        part = 1.0 if cost <= self.cash else self.cash / cost * (1 - 1e-12)
        for ticker, wanted in buys.items():
            bought = math.floor(wanted * part)
            if bought >= rules.minimum_trade:
                self.shares[ticker] += bought
                self.cash -= bought * price[ticker] * (1 + rules.buy_cost)
                changed.add(ticker)
        for ticker in self.rest:
            self.rest[ticker] = (
                rules.cool_down if ticker in changed else max(0, self.rest[ticker] - 1)
            )
        self.day += 1
        return (self.value() - before) / rules.initial_cash * rules.reward_scale
