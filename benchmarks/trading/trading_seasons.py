"""The seasons of trading.py, its runs, and what it asks of each library: train on the days before,
select on a year, and be judged once on the next one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from lab.events import tell
from numpy.typing import NDArray
from peers.stock_trading_env import ArrayStockTradingEnv

from podracer_trading.backtest import daily_returns
from podracer_trading.environment import StockTrading, statistic_of

Array = NDArray[Any]
Act = Callable[[Array], Array]
"""Observation [obs] -> greedy action [K], of a policy that changes no more."""
Returns = Mapping[str, NDArray[np.float64]]
"""By method, daily ones of the test year: [seeds, D]; the same days of all."""

HALF_YEARS = {2017}
"""Test years before which half a year selects, and the other one trains: the prices begin in 2015,
and the first year goes into indicators."""


@dataclass(frozen=True)
class Season:
    """The test year, and whether prices are adjusted at ex-rights dates: "auto" or "none"."""

    year: int
    adjust: str

    @property
    def end(self) -> str:
        """The last day of the test."""
        return f"{self.year}-12-31"

    @property
    def title(self) -> str:
        """For people."""
        return (
            f"{self.year}, {'adjusted prices' if self.adjust == 'auto' else 'prices as they are'}"
        )

    def arguments(self, columns: Mapping[str, str], max_stock: int) -> dict[str, Any]:
        """Of StockTrading-v0, in training and selection: the year before the test selects, all
        before that trains."""
        train_end = (
            f"{self.year - 2}-12-31" if self.year not in HALF_YEARS else f"{self.year - 1}-06-30"
        )
        return {
            "columns": dict(columns),
            "gaps": "forward_fill",
            "train_end": train_end,
            "validation_end": f"{self.year - 1}-12-31",
            "score": "sharpe_ratio",
            "adjust": self.adjust,
            "max_stock": max_stock,
            "buy_cost": 0.001,
            "sell_cost": 0.002,
        }


@dataclass(frozen=True)
class Run:
    """Daily returns of a test year, with all that they depend on."""

    settings: Mapping[str, Any]
    returns: Sequence[float]

    @property
    def key(self) -> str:
        return key_of(self.settings)


def key_of(settings: Mapping[str, Any]) -> str:
    """Equal for equal settings."""
    return json.dumps(settings, sort_keys=True)


@dataclass(frozen=True)
class TradingOrder:
    """What a process is to train, with the library's settings or ours.

    seconds    of wall time for training, or how long steps/s are measured
    arguments  of StockTrading-v0; the peers' accounts trade the same market by the same rules
    snapshots  that are looked at in that time, at equal distances; 0: only steps/s are measured
    test_end   the last day of the test
    """

    algorithm: str
    num_envs: int
    threads: int
    seed: int
    seconds: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    snapshots: int = 0
    test_end: str = ""


class Selection:
    """Looks at snapshots on the validation split, as our evaluator does: the one with the largest
    lower bound of the Sharpe ratio is kept, and it alone is played through the test split, once, at
    the end."""

    def __init__(self, order: TradingOrder) -> None:
        self._order = order
        self.market = StockTrading(1, **order.arguments)
        self._validation = StockTrading(1, evaluation=True, **order.arguments)
        last = {"evaluation_split": "test", "evaluation_end": order.test_end}
        self._test = StockTrading(1, evaluation=True, **{**order.arguments, **last})
        self._looked, self._began_at, self._looking_s = 0, 0.0, 0.0
        self._best: tuple[float, Act] | None = None

    def begin(self) -> None:
        """Training begins now."""
        self._began_at = time.perf_counter()

    def is_over(self, snapshot: Callable[[], Act], env_steps: int) -> bool:
        """To be asked between updates: takes a snapshot where it is time. The time that looking
        takes does not count.

        An update that takes longer than the distance of two snapshots has one snapshot at its end.
        """
        start = time.perf_counter()
        trained_s = start - self._began_at - self._looking_s
        due = min(
            int(trained_s / self._order.seconds * self._order.snapshots), self._order.snapshots
        )
        if due > self._looked:
            self._looked = due
            lower = self._consider(snapshot())
            tell("snapshot", trained_s=trained_s, lower=lower, env_steps=env_steps)
            self._looking_s += time.perf_counter() - start
        if trained_s < self._order.seconds or self._best is None:
            return False
        lower, act = self._best
        tell(
            "season",
            validation=lower,
            returns=played(self._test, act).tolist(),
            env_steps=env_steps,
        )
        return True

    def _consider(self, act: Act) -> float:
        """The lower bound of its Sharpe ratio in the validation."""
        lower = statistic_of(played(self._validation, act), "sharpe_ratio", 1.0).lower_bound
        if self._best is None or lower > self._best[0]:
            self._best = lower, act
        return lower


def played(market: StockTrading, act: Act) -> Array:
    """Daily returns [D] of one account from the first bar that `market` trades to the last."""
    account = ArrayStockTradingEnv(market)
    observation, _ = account.reset()
    values, is_over = [account.value], False
    while not is_over:
        observation, _, _, is_over, _ = account.step(act(observation))
        values.append(account.value)
    bars = market.bars
    return daily_returns(market.market.times[bars.start : bars.stop], np.array(values))
