"""The example's table, its job, and the page that explains them belong together."""

from __future__ import annotations

import runpy
import shutil
from dataclasses import fields
from pathlib import Path

from podracer_platform.jobs import load_job_file
from podracer_trading.environment import StockTrading
from podracer_trading.info import StockTradingConfig

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "stock_trading"


def test_the_table_is_what_its_script_makes(tmp_path):
    script = shutil.copy(EXAMPLE / "make_prices.py", tmp_path)
    runpy.run_path(script, run_name="__main__")
    assert (tmp_path / "prices.csv").read_bytes() == (EXAMPLE / "prices.csv").read_bytes()


def test_the_job_is_what_the_environment_takes():
    job = load_job_file(EXAMPLE / "job.yaml")
    environment = StockTrading(
        2, **job.environment.kwargs, **{name: str(path) for name, path in job.data.items()}
    )
    assert [date.ticker for date in environment.market.report.ex_rights] == ["CORAL"]
    assert environment.market.report.filled_bars == 8


def test_the_page_names_every_argument():
    page = (ROOT / "docs" / "environments" / "stock_trading.md").read_text()
    table = page.partition("## Arguments")[2]
    assert [
        field.name for field in fields(StockTradingConfig) if f"`{field.name}`" not in table
    ] == []
