"""Noise on everything after a bar, in the table itself before any preprocessing, changes nothing up
to that bar."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from podracer_trading.environment import StockTrading, indicators_of, turbulence_of
from podracer_trading.info import StockTradingConfig
from podracer_trading.market_data import (
    adjusted,
    align,
    checked,
    find_ex_rights,
    kept_times,
    read_table,
)
from support.stock_market import Row, days_of, market_rows, split_shares, without, write_csv

BARS, TRAIN_END = 130, 90
ROWS = market_rows(3, BARS, seed=9)
DAYS = days_of(ROWS)
MARKET = without(
    split_shares(split_shares(ROWS, "AAB", DAYS[60], 1.4), "AAC", DAYS[110], 2.0),
    {"AAA": DAYS[70:73], "AAC": [DAYS[100]]},
)
OPTIONS = {"gaps": "forward_fill", "train_end": DAYS[TRAIN_END - 1], "turbulence_window": 40}
PROPERTY = settings(
    max_examples=12, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def with_noise_after(bar: int, seed: int, rows: list[Row]) -> list[Row]:
    """Every price and volume of later rows is another one: some by a little, some tenfold."""
    generator = np.random.default_rng(seed)
    changed = []
    for row in rows:
        if row["time"] > DAYS[bar]:
            factor = float(np.exp(generator.normal(0, generator.choice([0.02, 0.3, 1.5]))))
            prices = {name: row[name] * factor for name in ("open", "high", "low", "close")}
            row = (
                row
                | prices
                | {"volume": int(generator.integers(0, 3) and generator.integers(1, 10**6))}
            )
        changed.append(row)
    return changed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("markets")


def seen(path: Path, bar: int, daily_limit: float | None) -> Mapping[str, Any]:
    """All that is known on the bars up to `bar`, before anything is standardized."""
    config = StockTradingConfig(table=str(path), **OPTIONS)
    table = checked(read_table(str(path), {}))
    found = [
        date for date in find_ex_rights(table, daily_limit) if date.time <= np.datetime64(DAYS[bar])
    ]
    table = adjusted(table, daily_limit)
    bars = align(table, indicators_of(table, config), kept_times(table, "forward_fill")[0])
    turbulence = turbulence_of(bars.close, bars.traded, 40)
    arrays = (bars.open, bars.close, bars.traded, bars.indicators, turbulence)
    return {"ex_rights": found, "arrays": [array[: bar + 1] for array in arrays]}


@PROPERTY
@example(bar=59, seed=0, daily_limit=None)
@example(bar=109, seed=1, daily_limit=0.1)
@given(
    bar=st.integers(0, BARS - 2),
    seed=st.integers(0, 99),
    daily_limit=st.sampled_from([None, 0.1, 0.2]),
)
def test_what_is_known_of_the_market(folder, bar, seed, daily_limit):
    one = seen(write_csv(folder / "one.csv", MARKET), bar, daily_limit)
    other = seen(
        write_csv(folder / "other.csv", with_noise_after(bar, seed, MARKET)), bar, daily_limit
    )
    assert one["ex_rights"] == other["ex_rights"]
    for array, noisy in zip(one["arrays"], other["arrays"], strict=True):
        assert np.array_equal(array, noisy, equal_nan=array.dtype.kind == "f")


def trade(path: Path, bar: int, fill: str) -> list[Tensor]:
    """All observations and rewards up to `bar` of accounts that start with the first one."""
    options = {
        **OPTIONS,
        "split": "all",
        "random_start": False,
        "turbulence_threshold": 6.0,
        "cool_down": 1,
    }
    environment = StockTrading(4, table=path, fill=fill, **options)
    seen = [environment.reset(torch.arange(4)).clone()]
    generator = torch.Generator().manual_seed(0)
    for _ in range(bar - environment.bars.start):
        step = environment.step(torch.rand(4, 3, generator=generator) * 2 - 1)
        seen += [step.final_observation.clone(), step.reward.clone()]
    return seen


@PROPERTY
@given(
    bar=st.integers(TRAIN_END, BARS - 2),
    seed=st.integers(0, 99),
    fill=st.sampled_from(["next_open", "same_close"]),
)
def test_what_an_agent_sees_and_gets(folder, bar, seed, fill):
    """Standardized with the training rows, so the noise begins after them."""
    one = trade(write_csv(folder / "one.csv", MARKET), bar, fill)
    other = trade(write_csv(folder / "other.csv", with_noise_after(bar, seed, MARKET)), bar, fill)
    assert len(one) == 1 + 2 * (bar - 41)
    assert all(torch.equal(value, noisy) for value, noisy in zip(one, other, strict=True))


def test_the_noise_is_seen_afterwards(folder):
    """The comparison above can fail."""
    one = trade(write_csv(folder / "one.csv", MARKET), 120, "next_open")
    other = trade(
        write_csv(folder / "other.csv", with_noise_after(119, 0, MARKET)), 120, "next_open"
    )
    same = [torch.equal(value, noisy) for value, noisy in zip(one, other, strict=True)]
    assert same == [True] * (len(one) - 2) + [False, False]
