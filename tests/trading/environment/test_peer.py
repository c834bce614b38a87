"""The environments that the benchmark measures beside ours do the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from podracer_trading.environment import StockTrading
from support.stock_market import days_of, market_rows, without, write_csv

PEER = Path(__file__).parents[3] / "benchmarks" / "peers" / "stock_trading_env.py"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "fill": "same_close",
            "turbulence_threshold": 6.0,
            "cool_down": 2,
            "minimum_trade": 9,
            "max_stock": 5000,
        },
    ],
    ids=["plain", "all knobs"],
)
@pytest.mark.parametrize("name", ["StockTradingEnv", "ArrayStockTradingEnv"])
def test_same_numbers(tmp_path, name, options):
    rows = market_rows(4, 120, seed=8)
    table = write_csv(tmp_path / "prices.csv", without(rows, {"AAB": days_of(rows)[70:72]}))
    spec = importlib.util.spec_from_file_location("stock_trading_env", PEER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    environment = StockTrading(
        1,
        evaluation=True,
        table=table,
        gaps="forward_fill",
        split="all",
        turbulence_window=30,
        **options,
    )
    peer = getattr(module, name)(environment)
    assert np.allclose(
        environment.reset(torch.zeros(1, dtype=torch.int64))[0], peer.reset()[0], atol=1e-6
    )
    generator = np.random.default_rng(0)
    while True:
        action = generator.uniform(-1, 1, 4).astype(np.float32)
        step = environment.step(torch.from_numpy(action)[None])
        observation, reward, terminated, truncated, _ = peer.step(action)
        np.testing.assert_allclose(step.final_observation[0], observation, atol=1e-5)
        assert float(step.reward) == pytest.approx(reward, rel=1e-5, abs=1e-6)
        assert not terminated
        assert bool(step.truncated) == truncated
        if truncated:
            break
    assert not step.valid.logical_not().any()
