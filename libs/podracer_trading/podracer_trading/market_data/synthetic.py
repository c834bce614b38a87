"""Synthetic markets, the same for the same seed: one factor, calm and volatile regimes, trends,
jumps, gaps, halts.

The log return of a bar is, with σ the volatility of a bar, v the regime's (1 or 2.5), F and ε
standard normal,

    r = μ(regime) + v σ (β F + sqrt(1 - β²) ε) + strength σ X + jump
        - reversion log(close / first close).

X is a hidden trend of each ticker that fades slowly, X' = ρ X + sqrt(1 - ρ²) ε', with a half-life
of 20 bars: an agent can learn it, as it shows in the returns of the last weeks. With `strength` 0
there is nothing to learn, with 0.3 a little, with 1 much: the share strength² / (1 + strength²) of
a calm bar's own variance is trend. With `reversion`, prices return to where they began, which is
learned more easily: a low price will rise."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import FieldViolation, InvalidInput
from podracer_trading.market_data.table import PriceTable

_BARS_OF_DAY = {"day": 1, "minute": 390}
_OPENING_MINUTE = 9 * 60 + 31
_DAILY_VOLATILITY = 0.015
_BETA = 0.6
_REGIME_LENGTHS = (120, 30)  # days, on average
_REGIME_VOLATILITY = np.array([1.0, 2.5])
_REGIME_DRIFT = np.array([0.0005, -0.001])  # a day
_HALF_LIFE = 20
_GAP = 0.3  # share of a bar's return that comes before it opens
_JUMPS_A_DAY = 0.002
_JUMP = 0.05
_LARGEST = 0.09  # of a bar's return, below the narrowest daily limit
_SHARES = 1.3  # that one becomes on an ex-rights date
_LONGEST_HALT = 5


@dataclass(frozen=True, slots=True)
class SyntheticMarket:
    """The parameters of a market.

    tickers    number of tickers
    bars       number of bars of each, halts included
    interval   day: weekdays; minute: 390 a weekday, from 9:31 on
    seed       a different one gives a different market
    start      first day
    strength   strength of the trends, in volatilities of a bar
    reversion  part of a close's distance from the first one, in logarithms, that the next bar takes
               back
    halts      number for each ticker: gaps of 1 to 5 bars
    ex_rights  dates on which one share of some ticker becomes 1.3, not adjusted
    """

    tickers: int = 5
    bars: int = 600
    interval: str = "day"
    seed: int = 0
    start: date = date(2020, 1, 6)
    strength: float = 0.3
    reversion: float = 0.0
    halts: int = 0
    ex_rights: int = 0

    def __post_init__(self) -> None:
        limits = {
            "tickers": (1, 10_000),
            "bars": (2, 100_000_000),
            "seed": (0, 2**63 - 1),
            "strength": (0, 10),
        }
        limits |= {"reversion": (0, 1), "halts": (0, self.bars // 20), "ex_rights": (0, 10_000)}
        violations = [
            FieldViolation(each.name, f"is {getattr(self, each.name)}, expected {low} to {high}")
            for each in fields(self)
            for low, high in [limits.get(each.name, (0, 0))]
            if each.name in limits and not low <= getattr(self, each.name) <= high
        ]
        if self.interval not in _BARS_OF_DAY:
            violations.append(
                FieldViolation("interval", f"is {self.interval!r}, expected day or minute")
            )
        if self.tickers * self.bars > 200_000_000:
            violations.append(
                FieldViolation("bars", "and tickers together make more than 200,000,000 rows")
            )
        if violations:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)


def make_market(market: SyntheticMarket) -> PriceTable:
    """The table, prices with four decimals, tickers A000, A001, … Raises InvalidInput for days
    after the year 9999."""
    generator = np.random.default_rng(market.seed)
    shape = (market.bars, market.tickers)
    times = _times(market)
    returns = _returns(market, generator)
    first = np.round(generator.uniform(10, 60, market.tickers), 4)
    close = first * np.exp(np.cumsum(returns, axis=0))
    before = np.vstack([first, close[:-1]])
    share = generator.uniform(0, 2 * _GAP, shape)
    opened = before * np.exp(share * returns)
    width = _DAILY_VOLATILITY / np.sqrt(_BARS_OF_DAY[market.interval]) / 2
    high = np.maximum(opened, close) * np.exp(width * np.abs(generator.standard_normal(shape)))
    low = np.minimum(opened, close) * np.exp(-width * np.abs(generator.standard_normal(shape)))
    activity = 1 + np.abs(returns) / (4 * width)
    volume = np.round(generator.lognormal(11, 0.5, shape) * activity)
    prices = np.stack([opened, high, low, close], axis=2)
    for _ in range(market.ex_rights):
        _go_ex_rights(market, generator, prices, volume)
    there = _there(market, generator)
    prices = np.maximum(np.round(prices, 4), 0.0001).transpose(1, 0, 2)[there.T]
    bounds = np.concatenate([[0], np.cumsum(there.sum(axis=0))])
    digits = max(3, len(str(market.tickers - 1)))
    names = tuple(f"A{index:0{digits}}" for index in range(market.tickers))
    all_times = np.broadcast_to(times, there.T.shape)[there.T]
    return PriceTable(names, bounds, all_times, prices, np.round(volume.T[there.T]))


def _times(market: SyntheticMarket) -> NDArray[np.datetime64]:
    per_day = _BARS_OF_DAY[market.interval]
    days = -(-market.bars // per_day)
    first = market.start + timedelta(
        days=max(0, 7 - market.start.weekday()) if market.start.weekday() > 4 else 0
    )
    last = np.busday_offset(np.datetime64(first), days - 1)
    if last > np.datetime64("9999-12-31"):
        raise InvalidInput(
            f"{market.bars} bars from {market.start} on go past the year 9999; choose fewer"
        )
    dates = np.busday_offset(np.datetime64(first), np.arange(days)).astype("datetime64[us]")
    if per_day == 1:
        return dates
    minutes = np.arange(_OPENING_MINUTE, _OPENING_MINUTE + per_day).astype("timedelta64[m]")
    times: NDArray[np.datetime64] = (dates[:, None] + minutes).reshape(-1)[: market.bars]
    return times


def _returns(market: SyntheticMarket, generator: np.random.Generator) -> NDArray[np.float64]:
    """[T, K] log returns."""
    per_day = _BARS_OF_DAY[market.interval]
    shape = (market.bars, market.tickers)
    volatility = _DAILY_VOLATILITY / np.sqrt(per_day)
    regime = _regimes(market.bars, per_day, generator)
    common = generator.standard_normal((market.bars, 1))
    own = generator.standard_normal(shape)
    beta = generator.uniform(_BETA - 0.2, _BETA + 0.2, market.tickers)
    noise = _REGIME_VOLATILITY[regime, None] * (beta * common + np.sqrt(1 - beta**2) * own)
    trend = _trends(generator.standard_normal(shape))
    jumps = (generator.random(shape) < _JUMPS_A_DAY / per_day) * generator.normal(0, _JUMP, shape)
    returns: NDArray[np.float64] = volatility * (noise + market.strength * trend) + jumps
    returns += _REGIME_DRIFT[regime, None] / per_day
    if not market.reversion:
        return np.clip(returns, -_LARGEST, _LARGEST, out=returns)
    level = np.zeros(market.tickers)
    for bar in range(len(returns)):
        returns[bar] = np.clip(returns[bar] - market.reversion * level, -_LARGEST, _LARGEST)
        level += returns[bar]
    return returns


def _regimes(bars: int, per_day: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """[T], 0 calm and 1 volatile."""
    regime = np.zeros(bars, dtype=np.int64)
    start, state = 0, 0
    while start < bars:
        length = int(generator.geometric(1 / (_REGIME_LENGTHS[state] * per_day)))
        regime[start : start + length] = state
        start, state = start + length, 1 - state
    return regime


def _trends(shocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """[T, K]: the trend before each bar, of variance 1."""
    keep = 0.5 ** (1 / _HALF_LIFE)
    trend = np.empty_like(shocks)
    trend[0] = shocks[0]
    for bar in range(1, len(shocks)):
        trend[bar] = keep * trend[bar - 1] + np.sqrt(1 - keep**2) * shocks[bar]
    return trend


def _go_ex_rights(
    market: SyntheticMarket,
    generator: np.random.Generator,
    prices: NDArray[np.float64],
    volume: NDArray[np.float64],
) -> None:
    """Add ex-rights dates, each at the first bar of a day, after the first tenth of the bars."""
    per_day = _BARS_OF_DAY[market.interval]
    days = market.bars // per_day
    if days < 2:
        raise InvalidInput("ex_rights: dates need 2 days at least; make more bars")
    day = int(generator.integers(max(1, days // 10), days))
    ticker = int(generator.integers(market.tickers))
    prices[day * per_day :, ticker] /= _SHARES
    volume[day * per_day :, ticker] *= _SHARES


def _there(market: SyntheticMarket, generator: np.random.Generator) -> NDArray[np.bool_]:
    """[T, K]: whether the bar exists; every ticker has its first bar."""
    there = np.ones((market.bars, market.tickers), dtype=np.bool_)
    for ticker in range(market.tickers):
        for _ in range(market.halts):
            start = int(generator.integers(1, market.bars))
            there[start : start + int(generator.integers(1, _LONGEST_HALT + 1)), ticker] = False
    return there
