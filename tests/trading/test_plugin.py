"""How the house finds trading: by entry points, as it would find anybody's field."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pkgutil import resolve_name

import pytest

from podracer_core.catalogue import (
    EnvironmentSpec,
    Recipe,
    find_environment,
    find_recipe,
    is_batched,
)
from podracer_core.evaluate import evaluator_class
from podracer_trading.backtesting import BacktestEvaluator
from podracer_trading.info import STOCK_TRADING
from support.processes import ROOT

PROJECT = tomllib.loads((ROOT / "libs/podracer_trading/pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("group", PROJECT["entry-points"])
def test_its_entry_points_lead_somewhere(group):
    for value in PROJECT["entry-points"][group].values():
        assert resolve_name(value) is not None


def test_the_catalogue_has_all_that_it_says():
    info = find_environment("StockTrading-v0")
    assert info == STOCK_TRADING
    assert is_batched("StockTrading-v0")
    assert info.score_name({"score": "sharpe_ratio"}) == "Sharpe"
    recipe = find_recipe(EnvironmentSpec("StockTrading-v0"), "cuda:0")
    assert recipe == Recipe("benchmarks/trading.md", 4096, 128, 128)
    for each in info.recipes.values():
        assert (ROOT / "docs" / each.evidence).is_file()
    assert evaluator_class("backtest") is BacktestEvaluator


def test_listing_commands_and_environments_imports_nothing_heavy():
    program = """
import sys
from podracer_client.command import application
from podracer_core.catalogue import find_environment
from typer.main import get_command
assert {"backtest", "data"} <= set(get_command(application).commands)
assert find_environment("StockTrading-v0").arguments
print(*({"torch", "numpy", "pyarrow", "talib", "gymnasium", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
