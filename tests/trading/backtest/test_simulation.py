"""Back-tests through the environment's own broker: equal to an evaluation, reproduced from the
trades, blind to what comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.evaluate import GreedyEvaluator
from podracer_trading.backtest import (
    BacktestRecord,
    equity_csv,
    holdings_csv,
    replay,
    trades_csv,
)
from podracer_trading.backtesting import BASELINES, play_baseline, play_policy
from podracer_trading.environment import StockTrading
from support.stock_market import Row, days_of, market_rows, write_csv

ROWS = market_rows(3, 160, seed=6)
DAYS = days_of(ROWS)


class Contrarian:
    """Buys what stands low against the training split's mean, sells what stands high."""

    members = 1

    def greedy(self, observation: Tensor, action_mask: Tensor | None = None) -> Tensor:
        return -observation[..., 4:7].clamp(-1, 1)

    def repeat(self, times: int) -> Contrarian:
        return self


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("market") / "prices.csv", ROWS)


def made(table: Path, **kwargs: Any) -> StockTrading:
    arguments = {
        "table": str(table),
        "indicators": ["rsi"],
        "train_end": str(DAYS[80]),
        "initial_cash": 50_000,
        "sell_cost": 0.002,
        **kwargs,
    }
    return StockTrading(1, evaluation=True, **arguments)


def closes(environment: StockTrading) -> np.ndarray[Any, np.dtype[np.float64]]:
    return environment.market.close[environment.bars.start : environment.bars.stop].numpy()


def replayed(
    record: BacktestRecord, environment: StockTrading
) -> np.ndarray[Any, np.dtype[np.float64]]:
    return replay(trades_csv(record), 50_000, record.tickers, record.times, closes(environment))


@pytest.mark.parametrize("fill", ["next_open", "same_close"])
def test_a_policy_is_played_as_an_evaluation_plays_it(table, fill):
    environment = made(table, fill=fill)
    record = play_policy(Contrarian(), environment)
    (result,) = GreedyEvaluator(lambda _: made(table, fill=fill), all_alike=True).evaluate(
        Contrarian(), [3]
    )
    assert (record.value[-1] / 50_000 - 1) * 100 == pytest.approx(result.returns[0], rel=1e-5)
    assert len(record.times) == result.lengths[0] + 1
    assert (record.traded > 0).any()
    assert (record.traded < 0).any()
    assert record.costs_paid > 0
    assert replayed(record, environment) == pytest.approx(record.value, rel=1e-9)
    assert environment.watch is None
    assert result.statistic is not None
    assert record.performance.sharpe_ratio == pytest.approx(
        result.statistic.statistics["sharpe_ratio"], rel=1e-3
    )


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_pay_the_same(table, name):
    environment = made(table)
    record = play_baseline(name, environment)
    assert (record.cash >= 0).all()
    assert replayed(record, environment) == pytest.approx(record.value, rel=1e-9)
    assert (record.traded != 0).any() == (name != "cash")
    first = environment.bars.start
    if name == "buy_and_hold":
        # A third of the cash at the first bar's close, filled at the next open.
        wanted = np.floor(50_000 / 3 / 1.001 / environment.market.close[first].numpy())
        assert record.orders[0].tolist() == wanted.tolist()
        assert record.price[0].tolist() == environment.market.open[first + 1].tolist()
        assert not (record.traded[1:] != 0).any()
    if name == "cash":
        assert set(record.value) == {50_000.0}


def test_noise_on_the_future_changes_no_past_decision(table, tmp_path):
    bar = 40  # of the record
    honest = made(table)
    start = str(honest.market.times[honest.bars.start + bar + 1])[:10]
    environment = made(_noisy(tmp_path / "noise.csv", start))
    for play in (
        lambda each: play_policy(Contrarian(), each),
        *(_baseline(name) for name in BASELINES),
    ):
        past, other = play(honest), play(environment)
        assert past.orders[: bar + 1].tolist() == other.orders[: bar + 1].tolist()
        assert past.value[: bar + 1].tolist() == other.value[: bar + 1].tolist()
    assert closes(honest)[bar + 1].tolist() != closes(environment)[bar + 1].tolist()


def test_from_a_day_to_a_day_with_the_training_splits_scale(table):
    whole = made(table)
    part = made(table, evaluation_start=str(DAYS[100]), evaluation_end=str(DAYS[119]))
    times = part.market.times[part.bars.start : part.bars.stop]
    assert [str(time)[:10] for time in times] == [str(day) for day in DAYS[100:120]]
    assert torch.equal(part.market.features, whole.market.features)
    for wrong, message in (
        (
            {"evaluation_start": "2099-01-01"},
            "evaluation_start is 2099-01-01: usable bars run from",
        ),
        ({"evaluation_end": "1999-01-01"}, "evaluation_end is 1999-01-01: usable bars run from"),
        (
            {"evaluation_start": str(DAYS[100]), "evaluation_end": str(DAYS[100])},
            "there are 1 bars, and two",
        ),
        ({"evaluation_start": "yesterday"}, "evaluation_start is 'yesterday'; a date such as"),
    ):
        with pytest.raises(InvalidInput, match=message):
            made(table, **wrong)


def test_files(table):
    environment = made(table)
    record = play_policy(Contrarian(), environment)
    equity = equity_csv(record).splitlines()
    assert equity[0] == "time,value,cash"
    assert [float(line.split(",")[1]) for line in equity[1:]] == record.value.tolist()
    assert holdings_csv(record).splitlines()[0] == "time," + ",".join(record.tickers)
    with pytest.raises(InvalidInput, match="a trade CSV"):
        replay(equity_csv(record), 1.0, record.tickers, record.times, closes(environment))
    with pytest.raises(InvalidInput, match="trade 1"):
        replay(trades_csv(record), 1.0, ("other",), record.times, closes(environment)[:, :1])


def test_what_cannot_be_played(table):
    with pytest.raises(InvalidInput, match="baseline 'gold'"):
        play_baseline("gold", made(table))
    two = StockTrading(2, evaluation=True, table=str(table), indicators=["rsi"])
    with pytest.raises(InvalidInput, match="account, not 1 × 2"):
        play_policy(Contrarian(), two)


def _baseline(name: str) -> Any:
    return lambda environment: play_baseline(name, environment)


def _noisy(path: Path, start: str) -> Path:
    """The table with prices from `start` on multiplied by noise."""
    generator = np.random.default_rng(1)
    return write_csv(
        path, [_scaled(row, float(generator.uniform(0.97, 1.03)), start) for row in ROWS]
    )


def _scaled(row: Row, factor: float, start: str) -> Row:
    if row["time"] < start:
        return row
    return row | {name: row[name] * factor for name in ("open", "high", "low", "close")}
