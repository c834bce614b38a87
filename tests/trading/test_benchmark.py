"""What benchmarks/trading/trading.py plans, keeps and concludes; that its processes train is shown by
running it."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from podracer_platform.jobs import parse_job, validate
from podracer_trading.backtest import daily_returns, sharpe_ratio
from podracer_trading.environment import StockTrading, statistic_of
from support.stock_market import days_of, market_rows, write_csv

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "trading"))

import trading
import trading_seasons
from lab.runs import Runs
from trading_report import above, growth, report, yearly_mean
from trading_seasons import Run, Season, Selection, TradingOrder, key_of, played

SEASON = Season(2019, "auto")
KEY = {"year": 2019, "method": "tournament", "seed": 0}


def test_a_season_trains_before_the_year_before_it():
    arguments = SEASON.arguments({"ticker": "tic"}, 5000)
    assert (arguments["train_end"], arguments["validation_end"], SEASON.end) == (
        "2017-12-31",
        "2018-12-31",
        "2019-12-31",
    )
    assert Season(2017, "auto").arguments({}, 1)["train_end"] == "2016-06-30", (
        "there is not a year before that"
    )
    assert (arguments["buy_cost"], arguments["sell_cost"], arguments["score"]) == (
        0.001,
        0.002,
        "sharpe_ratio",
    )


@pytest.mark.parametrize("name", ["tournament", "single"])
def test_our_jobs_are_job_files(name, tmp_path):
    table = write_csv(tmp_path / "prices.csv", market_rows(2, 60, seed=0))
    job = trading.our_job(name, 3, SEASON.arguments({}, 5000), Path(table), 60.0, 12)
    spec = parse_job(json.dumps(job), "job.json")
    validate(spec)
    assert (spec.evolution.round.seconds, spec.objective.max_duration, spec.seed) == (5.0, 60.0, 3)


@pytest.mark.parametrize(("candidates", "places"), [(0, []), (1, []), (3, ["3"]), (9, ["4"])])
def test_an_ensemble_has_as_many_policies_as_there_are(candidates, places, monkeypatch, tmp_path):
    printing = (sys.executable, "-c", f"print('{{}}\\n' * {candidates}, end='')")
    monkeypatch.setattr(trading, "PODRACER", printing)
    assert trading._ensemble("job", tmp_path) == [
        "job",
        *(["--ensemble", *places] if places else []),
    ]


def test_finished_runs_are_found_again_and_a_line_that_was_cut_off_is_not(tmp_path):
    results, single = tmp_path / "runs.jsonl", {**KEY, "method": "single"}
    Runs(Run, results).add([Run(KEY, [0.1, -0.2])])
    with results.open("a") as file:
        file.write('{"settings": {"year": 2019, "method": "single", "seed": 0}, "ret')
    assert key_of(single) not in Runs(Run, results)
    Runs(Run, results).add([Run(single, [0.3])])
    found = Runs(Run, results)
    assert [found.get(key_of(each)) for each in (KEY, single)] == [
        Run(KEY, [0.1, -0.2]),
        Run(single, [0.3]),
    ]
    assert found.get(key_of({**KEY, "seed": 1})) is None


def test_returns_compound_and_means_are_of_a_year():
    returns = np.array([[0.1, -0.5], [0.0, 1.0]])
    assert growth(returns) == pytest.approx([-0.45, 1.0])
    assert yearly_mean(returns) == pytest.approx([-50.4, 126.0])


def test_a_constant_lead_is_certain_over_the_days_however_they_are_drawn():
    others = np.random.default_rng(0).normal(0, 0.01, (2, 250))
    difference, lower, upper = above(others + 0.001, others, yearly_mean)
    assert (difference, lower, upper) == pytest.approx((0.252, 0.252, 0.252))
    difference, lower, upper = above(others[:1], others[1:], sharpe_ratio)
    assert lower < difference < upper
    with pytest.raises(ValueError, match="250 days against 249"):
        above(others, others[:, 1:], sharpe_ratio)


def test_targets_are_the_distance_from_the_best_other(capsys):
    days = np.random.default_rng(0).normal(0, 0.01, (1, 100))
    years = [Season(2019, "auto"), Season(2018, "auto")]
    found = {
        season: {
            "tournament": days + 0.001,
            "ensemble": days + 0.003,
            "single": np.concatenate([days, days]),
            "buy_and_hold": days + 0.002,
        }
        for season in years
    }
    report(found, 60.0)
    out = capsys.readouterr().out
    assert "Walk forward over 2018, 2019" in out
    targets = json.loads(out.splitlines()[-1])["targets"]
    assert {name: target["met"] for name, target in targets.items()} == {
        "sharpe_above_the_best_other": False,
        "return_above_the_best_other": False,
    }
    assert targets["return_above_the_best_other"]["value"] == pytest.approx(
        float(growth(days + 0.001)[0] - growth(days + 0.002)[0])
    )


ROWS = market_rows(3, 160, seed=4)
DAYS = days_of(ROWS)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    table = write_csv(tmp_path_factory.mktemp("market") / "prices.csv", ROWS)
    ends = {"train_end": DAYS[90], "validation_end": DAYS[120], "score": "sharpe_ratio"}
    return {
        "table": str(table),
        "indicators": ["macd", "rsi"],
        "max_stock": 500,
        "sell_cost": 0.002,
        **ends,
    }


def test_a_peers_account_goes_as_the_environments(arguments):
    market = StockTrading(1, evaluation=True, **arguments)
    action = np.array([0.5, -0.25, 1.0], np.float32)

    market.reset(torch.zeros(1, dtype=torch.int64))
    rewards = [
        float(market.step(torch.from_numpy(action if bar % 7 else -action)[None]).reward)
        for bar in range(len(market.bars) - 1)
    ]
    values = 1e6 * (1 + np.cumsum([0.0, *rewards]) / 100)
    expected = daily_returns(market.market.times[market.bars.start : market.bars.stop], values)

    bars = iter(range(len(market.bars)))
    found = played(market, lambda _: action if next(bars) % 7 else -action)
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert np.abs(found).max() > 1e-3


class Clock:
    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


def test_the_best_snapshot_of_the_validation_is_tested_once(arguments, monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(trading_seasons, "time", clock)
    selection = Selection(TradingOrder("ppo", 1, 1, 0, 10.0, arguments, 4, DAYS[150]))
    tested: list[int] = []

    def snapshot(number: int) -> trading_seasons.Act:
        def act(_: Any) -> Any:
            return np.roll(np.array([1.0, -1.0, 0.0], np.float32), number)

        return act

    plays = played

    def watched(market: StockTrading, act: trading_seasons.Act) -> Any:
        if market.split == "test":
            tested.append(1)
        return plays(market, act)

    monkeypatch.setattr(trading_seasons, "played", watched)
    selection.begin()
    is_over, number = False, 0
    while not is_over:
        clock.now_s += 0.5
        number += 1
        is_over = selection.is_over(functools.partial(snapshot, number), 100 * number)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    snapshots = [event for event in events if event["event"] == "snapshot"]
    assert [event["trained_s"] for event in snapshots] == [2.5, 5.0, 7.5, 10.0]
    (season,) = (event for event in events if event["event"] == "season")
    assert season["validation"] == max(event["lower"] for event in snapshots)
    assert tested == [1]
    best = max(snapshots, key=lambda event: float(event["lower"]))
    chosen = snapshot(best["env_steps"] // 100)
    last = {"evaluation_split": "test", "evaluation_end": DAYS[150]}
    test = StockTrading(1, evaluation=True, **{**arguments, **last})
    np.testing.assert_allclose(season["returns"], plays(test, chosen))
    validation = StockTrading(1, evaluation=True, **arguments)
    assert best["lower"] == statistic_of(plays(validation, chosen), "sharpe_ratio", 1.0).lower_bound
