"""What trading.py asks of each library: train on the days before, select on a year, and
be judged once on the next one. Needs podracer_core with torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peers.events import tell
from peers.stock_trading_env import ArrayStockTradingEnv

from podracer_trading.backtest import daily_returns
from podracer_trading.environment import StockTrading, statistic_of

Array = NDArray[Any]
Act = Callable[[Array], Array]
"""Observation [obs] -> greedy action [K], of a policy that changes no more."""


@dataclass(frozen=True)
class SeasonOrder:
    """`seconds` of wall time for training, in which a snapshot is looked at `snapshots` times, at
    equal distances; the test ends on the day `test_end`. `arguments` are StockTrading-v0's."""

    algorithm: str
    num_envs: int
    threads: int
    seed: int
    seconds: float
    snapshots: int
    test_end: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Selection:
    """Looks at snapshots on the validation split, as our evaluator does: the one with the largest
    lower bound of the Sharpe ratio is kept, and it alone is played through the test split, once, at
    the end."""

    def __init__(self, order: SeasonOrder) -> None:
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
