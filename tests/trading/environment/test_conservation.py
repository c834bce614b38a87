"""An account's value changes by prices and costs alone, whatever is ordered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podracer_trading.environment import Broker, StockTrading
from support.stock_market import days_of, market_rows, split_shares, without, write_csv

ROWS = market_rows(6, 130, seed=21, volatility=0.04)
DAYS = days_of(ROWS)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = without(
        split_shares(ROWS, "AAC", DAYS[80], 3.0),
        {"AAB": DAYS[60:64], "AAF": DAYS[:20], "AAE": DAYS[95:]},
    )
    return write_csv(tmp_path_factory.mktemp("market") / "prices.csv", rows)


@settings(max_examples=25, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    initial_cash=st.sampled_from([1e3, 1e5, 1e9]),
    max_stock=st.sampled_from([1, 100, 30_000]),
    costs=st.tuples(st.sampled_from([0.0, 0.001, 0.3]), st.sampled_from([0.0, 0.002, 0.9])),
    minimum_trade=st.sampled_from([1, 7]),
    fill=st.sampled_from(["next_open", "same_close"]),
    size=st.sampled_from([1.0, 5.0, 0.05]),
    seed=st.integers(0, 10**6),
)
def test_value(table, initial_cash, max_stock, costs, minimum_trade, fill, size, seed):
    buy_cost, sell_cost = costs
    options = {
        "gaps": "forward_fill",
        "indicators": ["rsi"],
        "initial_cash": initial_cash,
        "max_stock": max_stock,
    }
    costs_and_fill = {"buy_cost": buy_cost, "sell_cost": sell_cost, "fill": fill}
    least = {"minimum_trade": min(minimum_trade, max_stock), "reward_scale": 1.0}
    environment = StockTrading(5, table=table, **options, **costs_and_fill, **least)
    market = environment.market
    environment.reset(torch.arange(5) + seed)
    generator = torch.Generator().manual_seed(seed)
    state = environment.state()
    assert torch.allclose(
        state["state.value"], torch.full((5,), initial_cash, dtype=torch.float64), rtol=1e-12
    )
    held = state["state.cash"] + (state["state.shares"] * market.close[state["state.bar"]]).sum(1)
    assert torch.allclose(held, state["state.value"], rtol=1e-12)
    for _ in range(20):
        bar, shares, cash = (state[f"state.{name}"] for name in ("bar", "shares", "cash"))
        before, after = market.close[bar], market.close[bar + 1]
        price = before if fill == "same_close" else market.open[bar + 1]
        step = environment.step((torch.rand(5, 6, generator=generator) * 2 - 1) * size)
        state = environment.state()
        traded = state["state.shares"] - shares
        cost = (traded.clamp(min=0) * price).sum(1) * buy_cost + (-traded.clamp(max=0) * price).sum(
            1
        ) * sell_cost
        gained = (
            (shares * (price - before)).sum(1)
            + (state["state.shares"] * (after - price)).sum(1)
            - cost
        )
        change = state["state.value"] - cash - (shares * before).sum(1)
        scale = state["state.value"].max() + cash.max()
        torch.testing.assert_close(change, gained, rtol=0, atol=1e-12 * float(scale))
        torch.testing.assert_close(
            step.reward.double(), gained / initial_cash, rtol=1e-5, atol=1e-7
        )
        assert (state["state.cash"] >= 0).all()
        assert (state["state.shares"] >= 0).all()
        assert torch.equal(state["state.shares"], state["state.shares"].round())
        assert (traded.abs() <= max_stock).all()
        can_trade = (
            market.traded[bar] if fill == "same_close" else market.traded[bar + 1]
        ) & market.known[bar]
        assert not traded[~can_trade].any()


@settings(max_examples=40, derandomize=True, database=None)
@given(seed=st.integers(0, 10**6), stocks=st.integers(1, 9), minimum=st.sampled_from([1, 10]))
def test_the_order_of_the_stocks_plays_no_part(seed, stocks, minimum):
    generator = torch.Generator().manual_seed(seed)
    wanted = torch.randint(-50, 90, (7, stocks), generator=generator).double()
    price = torch.rand(7, stocks, generator=generator, dtype=torch.float64) * 100
    cash = torch.rand(7, generator=generator, dtype=torch.float64) * 5000
    shares = torch.randint(0, 60, (7, stocks), generator=generator).double()
    broker = Broker(0.001, 0.002, minimum)
    order = torch.randperm(stocks, generator=generator)
    plain, permuted = cash.clone(), cash.clone()
    traded = broker.execute(wanted, price, plain, shares.clone())
    again = broker.execute(wanted[:, order], price[:, order], permuted, shares[:, order])
    assert torch.equal(traded[:, order], again)
    torch.testing.assert_close(plain, permuted)
    # Of what was wanted in full, nothing is left out where the cash is enough for all.
    is_rich = (wanted.clamp(min=0) * price).sum(1) * 1.001 < cash
    enough = (wanted >= minimum) & is_rich[:, None]
    assert torch.equal(traded[enough], wanted[enough])


def test_an_order_by_hand():
    """Sell 10 of the 30; then 5,000 + 10 × 100 × 0.99 = 5,990 are there for (100 × 50 + 40 × 25) ×
    1.01 = 6,060."""
    wanted = torch.tensor([[-10.0, 100.0, 40.0, -5.0]], dtype=torch.float64)
    price = torch.tensor([[100.0, 50.0, 25.0, 10.0]], dtype=torch.float64)
    cash = torch.tensor([5000.0], dtype=torch.float64)
    shares = torch.tensor([[30.0, 0.0, 2.0, 0.0]], dtype=torch.float64)
    traded = Broker(buy_cost=0.01, sell_cost=0.01, minimum_trade=1).execute(
        wanted, price, cash, shares
    )
    # 5,990 / 6,060 of 100 and of 40, rounded down
    assert traded[0].tolist() == [-10.0, 98.0, 39.0, 0.0]
    assert shares[0].tolist() == [20.0, 98.0, 41.0, 0.0]
    assert cash.item() == pytest.approx(5990 - 1.01 * (98 * 50 + 39 * 25))


def test_small_orders():
    """None below the minimum, but the last shares of a stock can be sold."""
    wanted = torch.tensor([[9.0], [-9.0], [-9.0], [10.0], [-30.0]], dtype=torch.float64)
    shares = torch.tensor([[0.0], [50.0], [9.0], [0.0], [4.0]], dtype=torch.float64)
    price = torch.ones(5, 1, dtype=torch.float64)
    cash = torch.full((5,), 1000.0, dtype=torch.float64)
    traded = Broker(0.0, 0.0, minimum_trade=10).execute(wanted, price, cash, shares)
    assert traded[:, 0].tolist() == [0.0, 0.0, -9.0, 10.0, -4.0]


def test_the_last_bit_of_the_cash():
    """An account that can pay for exactly what it orders is left with nothing, never with less: a
    negative rest would be divided among the next day's purchases as negative shares."""
    price = torch.arange(1.0, 1001.0, dtype=torch.float64)[:, None] / 100
    wanted = torch.arange(1000.0, dtype=torch.float64)[:, None] % 37 + 1
    cash, shares = (price * wanted)[:, 0] * 1.001, torch.zeros_like(price)
    broker = Broker(buy_cost=0.001, sell_cost=0.001, minimum_trade=1)
    assert torch.equal(broker.execute(wanted, price, cash, shares), wanted)
    assert (cash >= 0).all()
    again = broker.execute(wanted, price, cash, shares)
    assert not again.any()
    assert torch.equal(shares, wanted)
