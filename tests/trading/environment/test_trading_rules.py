"""The environment does what a plain Python account does, step by step, on a market made up and on a
real one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from podracer_trading.environment import StockTrading
from support.plain_stock_trading import PlainAccount, PlainRules, plain_market, plain_turbulence
from support.stock_market import a_shares, days_of, market_rows, split_shares, without, write_csv

WINDOW = 30  # of turbulence, so that a short table will do


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = market_rows(5, 160, seed=3)
    days = days_of(rows)
    rows = split_shares(rows, "AAC", days[70], 1.3)
    rows = without(rows, {"AAB": days[50:55], "AAD": [days[90], days[158]]})
    return write_csv(tmp_path_factory.mktemp("market") / "prices.csv", rows)


def follow(
    environment: StockTrading,
    path: Path,
    rules: PlainRules,
    steps: int,
    ticker_column: str = "ticker",
) -> int:
    """Random actions in both; returns how many shares changed hands."""
    market = plain_market(path, ticker_column)
    assert [str(day.astype("datetime64[D]")) for day in environment.market.times] == market.days
    environment.reset(torch.arange(environment.num_envs))
    state = environment.state()
    accounts = [
        PlainAccount(market, rules, int(bar), float(cash), shares.tolist())
        for bar, cash, shares in zip(
            state["state.bar"], state["state.cash"], state["state.shares"], strict=True
        )
    ]
    generator = torch.Generator().manual_seed(1)
    threshold, turnover = environment.config.turbulence_threshold, 0.0
    for _ in range(steps):
        action = (
            torch.rand(environment.num_envs, len(market.tickers), generator=generator) * 2.4 - 1.2
        )
        turbulent = [
            threshold is not None and plain_turbulence(market, account.day, WINDOW) > threshold
            for account in accounts
        ]
        before = state["state.shares"]
        step = environment.step(action)
        state = environment.state()
        turnover += float((state["state.shares"] - before).abs().sum())
        rewards = [
            a.step(row.tolist(), t) for a, row, t in zip(accounts, action, turbulent, strict=True)
        ]
        torch.testing.assert_close(step.reward, torch.tensor(rewards), rtol=1e-5, atol=1e-6)
        shares = torch.tensor(
            [list(account.shares.values()) for account in accounts], dtype=torch.float64
        )
        assert torch.equal(state["state.shares"], shares)
        cash = torch.tensor([account.cash for account in accounts], dtype=torch.float64)
        torch.testing.assert_close(state["state.cash"], cash, rtol=0, atol=1e-6)
        assert not step.terminated.any()
        assert step.valid.all()
    return round(turnover)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fill": "same_close"},
        {"cool_down": 2},
        {"minimum_trade": 40},
        {"max_stock": 2000, "initial_cash": 50_000.0},  # the cash is not enough for most of it
        {"max_stock": 900, "initial_cash": 20_000.0, "minimum_trade": 25, "cool_down": 1},
        {"buy_cost": 0.01, "sell_cost": 0.03},
        {"random_holdings": False, "reward_scale": 1.0},
    ],
    ids=str,
)
def test_a_made_up_market(table, options):
    indicators = ["macd", "rsi", "cci", "adx", "bollinger"]
    environment = StockTrading(
        4, table=table, gaps="forward_fill", indicators=indicators, split="all", **options
    )
    own = {
        name: value for name, value in options.items() if name not in ("fill", "random_holdings")
    }
    rules = PlainRules(**own, same_close=options.get("fill") == "same_close")
    # half of 127: the indicators need 33 bars before the first
    assert environment.max_episode_steps == 63
    assert follow(environment, table, rules, 62) > 1000


def test_everything_is_sold_in_turbulence(tmp_path):
    table = write_csv(tmp_path / "prices.csv", market_rows(4, 150, seed=5))
    options = {
        "turbulence_window": WINDOW,
        "turbulence_threshold": 7.0,
        "cool_down": 3,
        "minimum_trade": 20,
    }
    environment = StockTrading(3, table=table, split="all", random_start=False, **options)
    calm = ~environment.market.turbulence.gt(7.0)[environment.bars.start :]
    assert 5 < int((~calm).sum()) < 60
    assert (
        follow(
            environment, table, PlainRules(cool_down=3, minimum_trade=20), len(environment.bars) - 2
        )
        > 1000
    )
    environment.reset(torch.arange(3))
    for is_calm in calm[:-1]:
        shares = environment.state()["state.shares"] if not is_calm else None
        step = environment.step(torch.ones(3, 4))
        assert (
            shares is None or step.truncated.all() or not environment.state()["state.shares"].any()
        )


@pytest.mark.parametrize("evaluation", [False, True])
def test_a_real_market(evaluation):
    table = a_shares()
    environment = StockTrading(
        3,
        evaluation=evaluation,
        table=table,
        columns={"ticker": "tic"},
        gaps="forward_fill",
        train_end="2018-12-31",
        max_stock=2000,
    )
    steps = environment.max_episode_steps
    assert steps == (245 if evaluation else 360)
    assert follow(environment, table, PlainRules(max_stock=2000), steps - 1, "tic") > 10_000
