"""StockTrading-v0 as jobs meet it: made by its id, for training and for evaluation, on a CPU and on
a GPU."""

from __future__ import annotations

import logging
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import (
    VecEnvironment,
    evaluates_alike,
    inspect_environment,
    make_vec_environment,
)
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.random_numbers import derive_key
from podracer_platform.training_messages import inspected
from podracer_trading.environment import StockTrading
from podracer_trading.info import STOCK_TRADING, StockTradingConfig
from support.errors import raises
from support.stock_market import days_of, market_rows, split_shares, write_csv

ROWS = market_rows(3, 120, seed=4)
DAYS = days_of(ROWS)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = split_shares(ROWS, "AAB", DAYS[60], 2.0)
    return write_csv(tmp_path_factory.mktemp("market") / "prices.csv", rows)


def spec(table: Path, limit: int | None = None, **kwargs: Any) -> EnvironmentSpec:
    arguments = {"table": str(table), "indicators": ["macd", "rsi"], **kwargs}
    return EnvironmentSpec(id="StockTrading-v0", kwargs=arguments, max_episode_steps=limit)


def made(table: Path, num_envs: int, limit: int | None = None, **kwargs: Any) -> StockTrading:
    environment = make_vec_environment(spec(table, limit, **kwargs), num_envs)
    assert isinstance(environment, StockTrading)
    return environment


def test_the_catalogue_says_what_it_takes():
    arguments = {each.name: each for each in STOCK_TRADING.arguments}
    config = {field.name: field for field in fields(StockTradingConfig)}
    assert set(arguments) == set(config)
    for name, argument in arguments.items():
        assert argument.required == (
            config[name].default is MISSING and config[name].default_factory is MISSING
        )
        if not argument.required and config[name].default is not MISSING:
            assert argument.default == config[name].default


def test_inspection(table, caplog):
    with caplog.at_level(logging.INFO):
        found = inspect_environment(spec(table))
    assert found.observation_space.shape == (1 + 3 + 3 * 3,)  # type: ignore[union-attr]
    assert found.action_space.shape == (3,)  # type: ignore[union-attr]
    # 120 bars, 33 before the indicators are known; 70 % of 87 for training, half of whose steps
    # make an episode.
    assert found.max_episode_steps == 30
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"StockTrading-v0: {table}: 3 tickers, 120 bars from 2015-01-05 to")
    assert "1 ex-rights dates smoothed: AAB 2015-03-30 (-50" in line
    message = inspected(spec(table), 60.0).description
    assert message.deterministic_evaluation
    assert message.backend == "torch"
    assert f"StockTrading-v0: {message.preparation}" == line
    uploaded = EnvironmentSpec(
        id="StockTrading-v0", kwargs={"indicators": ["rsi"]}, data={"table": str(table)}
    )
    assert inspected(uploaded, 60.0).description.preparation.startswith(
        "table: 3 tickers, 120 bars from 2015-01-05 to"
    )
    assert not inspected(
        EnvironmentSpec(id="CartPole-v1"), 60.0
    ).description.deterministic_evaluation


def test_wrong_arguments_come_with_the_nearest_name(table):
    with raises(InvalidInput, field="environment.kwargs.sell_costs") as caught:
        made(table, 1, sell_costs=0.1)
    assert caught.value.violations[0].field == "environment.kwargs.sell_costs"
    with raises(InvalidInput, field="environment.kwargs.table"):
        make_vec_environment(EnvironmentSpec(id="StockTrading-v0"), 1)


def test_a_job_cannot_have_evaluation_for_training(table):
    """Else it would train on the validation split without a word."""
    with raises(InvalidInput, field="environment.kwargs.evaluation") as caught:
        made(table, 1, evaluation=True)
    assert caught.value.violations[0].field == "environment.kwargs.evaluation"


@pytest.mark.parametrize("limit", [0, -5])
def test_episodes_of_no_length(table, limit):
    with raises(InvalidInput, field="environment.max_episode_steps"):
        made(table, 1, max_episode_steps=limit)


def test_training_starts_anywhere(table):
    environment = made(table, 500)
    environment.reset(derive_key(0, torch.arange(500)))
    state = environment.state()
    bars = environment.market.splits["train"]
    assert bars == range(33, 94)
    assert state["state.bar"].unique().tolist() == list(range(33, 33 + 61 - 30))
    in_shares = 1 - state["state.cash"] / 1_000_000
    assert 0.0 <= float(in_shares.min()) < 0.05
    assert 0.95 < float(in_shares.max()) <= 1.0
    assert ((state["state.shares"] > 0).sum(0) > 480).all()
    fixed = made(table, 5, random_start=False, random_holdings=False)
    fixed.reset(torch.arange(5))
    assert fixed.max_episode_steps == 60
    assert fixed.state()["state.bar"].tolist() == [33] * 5
    assert not fixed.state()["state.shares"].any()


def test_episodes_end_at_the_limit_with_the_true_last_observation(table):
    environment = made(table, 4, limit=10)
    environment.reset(torch.arange(4))
    bars = environment.state()["state.bar"]
    for _ in range(9):
        assert not environment.step(torch.zeros(4, 3)).truncated.any()
    step = environment.step(torch.zeros(4, 3))
    assert step.truncated.all()
    assert not step.terminated.any()
    closes = environment.market.features[bars + 10][:, :, 0]
    assert torch.equal(step.final_observation[:, 4:7], closes)
    assert not torch.equal(step.observation[:, 4:7], closes)
    assert made(table, 1, limit=1000).max_episode_steps == 60  # no longer than the split


def test_what_an_agent_sees(table):
    environment = made(
        table,
        2,
        cool_down=4,
        indicators=["rsi", "turbulence"],
        turbulence_window=30,
        random_start=False,
    )
    observation = environment.reset(torch.arange(2))
    market, state = environment.market, environment.state()
    assert observation.shape == (2, 1 + 3 + 3 + 3 + 1 + 3)
    assert torch.equal(observation[:, 0], (state["state.cash"] / 1e6).float())
    assert torch.equal(
        observation[:, 1:4], (state["state.shares"] * market.mean_close / 1e6).float()
    )
    bar = environment.bars.start
    assert torch.equal(observation[:, 4:10], market.features[bar].t().reshape(1, 6).expand(2, -1))
    assert torch.equal(observation[:, 10:11], market.turbulence_feature[bar].expand(2, 1))
    assert not observation[:, 11:].any()
    step = environment.step(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    assert step.observation[:, 11:].tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    step = environment.step(torch.zeros(2, 3))
    assert step.observation[:, 11:].tolist() == [[0.75, 0.0, 0.0], [0.0, 0.0, 0.75]]


def test_evaluation_is_always_the_same(table):
    """Cash alone at the first bar of validation, whatever the seed; to its last bar, whatever the
    limit."""
    environment = make_vec_environment(spec(table, limit=5), 3, evaluation=True)
    assert isinstance(environment, StockTrading)
    assert environment.split == "validation"
    assert environment.bars == range(94, 107)
    assert environment.max_episode_steps == 12
    observation = environment.reset(torch.tensor([1, 2, 3]))
    assert torch.equal(observation, observation[:1].expand(3, -1))
    assert observation[0, :4].tolist() == [1.0, 0.0, 0.0, 0.0]
    for _ in range(30):
        step = environment.step(torch.full((3, 3), 0.7))
        assert torch.equal(step.observation, step.observation[:1].expand(3, -1))
    for kwargs, split in (
        ({"split": "test"}, "test"),
        ({"evaluation_split": "train"}, "train"),
        ({"split": "all"}, "all"),
    ):
        other = make_vec_environment(spec(table, **kwargs), 1, evaluation=True)
        assert isinstance(other, StockTrading)
        assert other.split == split
    assert make_vec_environment(EnvironmentSpec(id="CartPole-v1"), 1, evaluation=True).num_envs == 1


class BuyMore:
    """Members buy different amounts of everything, every day."""

    def __init__(self, *amounts: float) -> None:
        self.amounts, self.members, self.rows_seen = amounts, len(amounts), 0

    def repeat(self, times: int) -> BuyMore:
        self.blocks = times
        return self

    def greedy(self, observation: torch.Tensor, action_mask: Any = None) -> torch.Tensor:
        self.rows_seen += observation.shape[0] * observation.shape[1]
        amount = torch.tensor(self.amounts).repeat_interleave(self.blocks)
        return amount[:, None, None].expand(*observation.shape[:2], 3)


def test_one_episode_judges(table):
    """Episodes of an evaluation are all alike, so one is played; its return is that of all, and the
    interval says how sure it is on other days of the kind."""
    made_for: list[int] = []

    def make(count: int) -> VecEnvironment:
        made_for.append(count)
        return make_vec_environment(spec(table), count, evaluation=True)

    evaluator = GreedyEvaluator(make)
    actor: Any = BuyMore(0.0, 0.5, 1.0)
    results = evaluator.evaluate(actor, [7, 8, 9, 10])
    again = evaluator.evaluate(actor, [7, 8, 9, 10], first_row=4)
    assert results == again
    assert made_for == [12, 3]
    made_for.clear()
    assert (
        GreedyEvaluator(make, all_alike=evaluates_alike(spec(table))).evaluate(actor, [7, 8, 9, 10])
        == results
    )
    assert made_for == [3]
    for result in results:
        assert result.seeds == (7, 8, 9, 10)
        assert result.lengths == (12,) * 4
        assert len(set(result.returns)) == 1
        assert result.mean == pytest.approx(result.returns[0], rel=1e-9)
    # it never trades
    assert results[0].mean == results[0].lower_bound == results[0].upper_bound == 0.0
    assert results[0].statistic is not None
    assert results[0].statistic.statistics["sharpe_ratio"] == 0.0
    for result in results[1:]:
        assert result.deterministic
        assert result.lower_bound < result.mean < result.upper_bound
    (by_sharpe, *_) = GreedyEvaluator(
        lambda count: make_vec_environment(
            spec(table, score="sharpe_ratio"), count, evaluation=True
        )
    ).evaluate(BuyMore(1.0), [7])  # type: ignore[arg-type]
    assert by_sharpe.returns[0] == results[2].returns[0]
    assert by_sharpe.mean == by_sharpe.statistic.statistics["sharpe_ratio"] != by_sharpe.returns[0]  # type: ignore[union-attr]
    assert results[1].mean != results[2].mean != 0.0
    environment = make(1)
    environment.reset(torch.zeros(1, dtype=torch.int64))
    total = sum(float(environment.step(torch.full((1, 3), 0.5)).reward) for _ in range(12))
    assert results[1].mean == pytest.approx(total, rel=1e-6)


def test_an_action_of_nan_ends_only_its_own_episode(table):
    environment = made(table, 3)
    environment.reset(torch.arange(3))
    action = torch.zeros(3, 3)
    action[1, 2] = torch.nan
    step = environment.step(action)
    assert step.valid.tolist() == [True, False, True]
    assert step.truncated.tolist() == [False, True, False]
    assert step.observation.isfinite().all()
    assert environment.state()["state.cash"].isfinite().all()


def test_an_evaluation_that_would_be_impossible_is_refused_at_once(table):
    with raises(InvalidInput, field="environment.kwargs.train_end"):
        made(table, 1, train_end=DAYS[-1])
    assert made(table, 1, train_end=DAYS[-1], evaluation_split="train").split == "train"


def test_who_has_no_validation_is_evaluated_where_training_trades(table):
    for ends in (
        {"train_end": DAYS[80], "validation_end": DAYS[80]},
        {"train_fraction": 0.8, "validation_fraction": 0.0},
    ):
        environment = made(table, 1, **ends)
        evaluation = make_vec_environment(spec(table, **ends), 1, evaluation=True)
        assert isinstance(evaluation, StockTrading)
        assert (evaluation.split, evaluation.bars) == ("train", environment.bars)


def _outcome(environment: StockTrading, steps: int) -> list[torch.Tensor]:
    count = environment.num_envs
    found = [environment.reset(torch.arange(count, device=environment.device)).cpu().clone()]
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        step = environment.step(
            (torch.rand(count, 3, generator=generator) * 2 - 1).to(environment.device)
        )
        values = step.observation, step.reward, step.truncated, step.final_observation
        found += [value.cpu().clone() for value in values]
    return found


KNOBS = {"cool_down": 2, "minimum_trade": 5, "turbulence_threshold": 6.0, "turbulence_window": 30}


@pytest.mark.gpu
def test_a_gpu_does_the_same(table):
    found = [
        _outcome(
            StockTrading(64, device, 20, table=table, indicators=["rsi", "turbulence"], **KNOBS), 50
        )
        for device in ("cpu", "cuda")
    ]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
def test_a_step_can_be_captured(table):
    environment = StockTrading(
        64, "cuda", 20, table=table, indicators=["rsi", "turbulence"], **KNOBS
    )
    environment.reset(torch.arange(64, device="cuda"))
    saved, action = environment.state(), torch.rand(64, 3, device="cuda") * 2 - 1
    expected = [
        [value.clone() for value in (s.observation, s.reward)]
        for s in (environment.step(action) for _ in range(50))
    ]
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        environment.step(action)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        step = environment.step(action)
    environment.load_state(saved)
    for observation, reward in expected:
        graph.replay()
        assert torch.equal(step.observation, observation)
        assert torch.equal(step.reward, reward)
