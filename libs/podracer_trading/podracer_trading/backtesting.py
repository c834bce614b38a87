"""Back-tests of accounts in StockTrading-v0's market and broker, the bars that a policy has seen,
and the evaluator `backtest`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from podracer_core.environments import VecEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import Evaluated, GreedyEvaluator
from podracer_trading.backtest import BacktestRecord
from podracer_trading.environment import (
    Decision,
    Market,
    StockTrading,
    evaluation_bars,
    split_bars,
    traded_splits,
)
from podracer_trading.info import StockTradingConfig

MARKET = "StockTrading-v0"
"""The environment."""

# Orders in shares [K], from the bar, the cash, and the shares [K] that are held.
Rule = Callable[[int, float, Tensor], Tensor]


class BacktestEvaluator(GreedyEvaluator):
    """Back-tests policies in the market of StockTrading-v0, and in no other environment: one
    episode, judged by the account's own statistic."""

    def _environment(self, num_envs: int) -> VecEnvironment:
        environment = super()._environment(num_envs)
        if not isinstance(environment, StockTrading):
            raise not_a_market(type(environment).__name__)
        return environment


def not_a_market(name: str) -> InvalidInput:
    """The refusal of another environment."""
    problem = f"only policies of {MARKET} can be back-tested, and this is {name}: use evaluate"
    return InvalidInput(problem, field="environment", reason="NOT_A_MARKET")


def play_policy(
    actor: Evaluated, environment: StockTrading, check: Callable[[], None] = lambda: None
) -> BacktestRecord:
    """A policy's (or an ensemble's) decisions, exactly as an evaluation plays them.

    `environment` is made for evaluation, with one account. `check` raises to cancel. Raises
    InvalidInput for another environment."""
    if actor.members != 1 or environment.num_envs != 1:
        raise InvalidInput(
            f"a back-test plays one policy in one account, not {actor.members} × "
            f"{environment.num_envs}"
        )
    decisions: list[Decision] = []
    evaluator = GreedyEvaluator(lambda _: environment, all_alike=True, check=check)
    environment.watch = decisions.append
    try:
        evaluator.evaluate(actor, [0])
    finally:
        environment.watch = None
    return _record(environment, decisions[: len(environment.bars) - 1])


def play_baseline(name: str, environment: StockTrading) -> BacktestRecord:
    """One of `BASELINES` over the same bars: same fills and costs, but `max_stock`, `cool_down` and
    turbulence do not bind it. Raises InvalidInput for another name."""
    if name not in BASELINES:
        raise InvalidInput(f"there is no baseline {name!r}; expected one of {', '.join(BASELINES)}")
    rule = BASELINES[name](environment)
    market, stocks = environment.market, len(environment.market.tickers)
    cash = torch.full((1,), environment.config.initial_cash, dtype=torch.float64)
    shares = torch.zeros(1, stocks, dtype=torch.float64)
    decisions = []
    for bar in environment.bars[:-1]:
        price = environment.fill_price[bar].cpu()[None]
        orders = rule(bar, float(cash), shares[0])[None] * environment.can_fill[bar].cpu()
        traded = environment.broker.execute(orders, price, cash, shares)
        value = (shares * market.close[bar + 1].cpu()).sum(1) + cash
        decisions.append(Decision(orders, traded, price, cash.clone(), shares.clone(), value))
    return _record(environment, decisions)


def index_record(level: NDArray[np.float64], environment: StockTrading) -> BacktestRecord:
    """An index with these levels [T] at the bars that `environment` trades, as an account without
    shares or costs that begins with the same cash."""
    value = level / level[0] * environment.config.initial_cash
    times = environment.market.times[environment.bars.start : environment.bars.stop]
    none, decisions = np.zeros((len(times), 0)), np.zeros((len(times) - 1, 0))
    return BacktestRecord(
        (), times, times[1:], value, value, none, none, decisions, decisions, decisions, decisions
    )


def _buy_and_hold(environment: StockTrading) -> Rule:
    """Equal parts of the cash in all stocks at the first bar on which each can be bought, never
    sold."""
    market, config = environment.market, environment.config
    part = config.initial_cash / len(market.tickers)

    def rule(bar: int, cash: float, shares: Tensor) -> Tensor:
        wanted = _shares_for(environment, bar, part)
        return torch.where(shares > 0, 0.0, wanted)

    return rule


def _equal_weight(unit: str) -> Callable[[StockTrading], Rule]:
    """Equal parts of the account in all stocks, restored on the first bar of every day or month
    ("D", "M")."""

    def make(environment: StockTrading) -> Rule:
        market = environment.market
        period = market.times.astype(f"datetime64[{unit}]")

        def rule(bar: int, cash: float, shares: Tensor) -> Tensor:
            if bar != environment.bars.start and period[bar] == period[bar - 1]:
                return torch.zeros_like(shares)
            close = market.close[bar].cpu()
            value = cash + float((shares * close).sum())
            return _shares_for(environment, bar, value / len(shares)) - shares

        return rule

    return make


def _cash(environment: StockTrading) -> Rule:
    return lambda bar, cash, shares: torch.zeros_like(shares)


BASELINES: dict[str, Callable[[StockTrading], Rule]] = {
    "buy_and_hold": _buy_and_hold,
    "equal_weight_daily": _equal_weight("D"),
    "equal_weight_monthly": _equal_weight("M"),
    "cash": _cash,
}


def _shares_for(environment: StockTrading, bar: int, money: float) -> Tensor:
    """Whole shares of each stock [K] that `money` buys at the bar's close, costs included; 0 of a
    stock without one."""
    close = environment.market.close[bar].cpu()
    each = money / (1 + environment.config.buy_cost) / torch.where(close > 0, close, 1.0)
    return torch.where(close > 0, each, 0.0).floor()


def _record(environment: StockTrading, decisions: Sequence[Decision]) -> BacktestRecord:
    """`decisions` of one account, on all bars but the last."""
    config, market, bars = environment.config, environment.market, environment.bars
    times = market.times[bars.start : bars.stop]

    def rows(tensors: Sequence[Tensor]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return torch.cat([tensor.double().cpu() for tensor in tensors]).numpy()

    traded = rows([each.traded for each in decisions])
    price = rows([each.price for each in decisions])
    value, cash = (
        rows([getattr(each, name)[:, None] for each in decisions])[:, 0]
        for name in ("value", "cash")
    )
    shares = rows([each.shares for each in decisions])
    return BacktestRecord(
        tickers=market.tickers,
        times=times,
        filled=times[1:] if config.fill == "next_open" else times[:-1],
        value=np.concatenate([[config.initial_cash], value]),
        cash=np.concatenate([[config.initial_cash], cash]),
        shares=np.concatenate([np.zeros_like(shares[:1]), shares]),
        close=market.close[bars.start : bars.stop].double().cpu().numpy(),
        orders=rows([each.orders for each in decisions]),
        traded=traded,
        price=price,
        cost=np.abs(traded) * price * np.where(traded > 0, config.buy_cost, config.sell_cost),
    )


_OF_SPLITS = (
    *("train_end", "validation_end", "train_fraction", "validation_fraction"),
    *("split", "evaluation_split", "evaluation_start", "evaluation_end"),
)


def dated(kwargs: Mapping[str, Any], former: Market) -> dict[str, Any]:
    """An environment's arguments with the last days of training and validation from `former`, the
    market of the training, unless they name them. Fractions of a longer table would give other
    days, and standardize observations by them."""
    splits = split_bars(former.times, former.splits["all"].start, _splitting(kwargs))
    last = {
        f"{split}_end": former.times[splits[split][-1]]
        for split in ("train", "validation")
        if splits[split]
    }
    return {
        **{
            name: str(time.astype("datetime64[s]")).replace("T", " ") for name, time in last.items()
        },
        **kwargs,
    }


def seen_bars(
    kwargs: Mapping[str, Any], market: Market, until: np.datetime64 | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The bars of `market` on which a policy with these environment arguments was trained, and
    those by which it was selected, [T] each. `until` is the last bar of the training table, if the
    market continues after it.

    Raises InvalidInput for arguments without a training split.
    """
    config = _splitting(kwargs)
    splits = split_bars(market.times, market.splits["all"].start, config)
    trained, evaluated = traded_splits(config)
    try:
        selecting = evaluation_bars(splits, evaluated, market.times, config)
    except InvalidInput:  # those days are not in this table
        selecting = range(0)
    there = np.ones(len(market.times), bool) if until is None else market.times <= until
    bars = np.arange(len(market.times))
    return np.isin(bars, splits[trained]) & there, np.isin(bars, selecting) & there


def _splitting(kwargs: Mapping[str, Any]) -> StockTradingConfig:
    own = {name: kwargs[name] for name in _OF_SPLITS if name in kwargs}
    return StockTradingConfig.from_options({"table": "-", **own})
