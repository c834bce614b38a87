"""Which bars a policy knows, worked out by hand on ten days."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from podracer_trading.backtesting import dated, seen_bars
from podracer_trading.environment import Market, prepare
from podracer_trading.info import StockTradingConfig
from support.stock_market import days_of, market_rows, write_csv

ROWS = market_rows(2, 10, seed=1)
DAYS = days_of(ROWS)


def market(folder: Path, bars: int = 10) -> Market:
    path = write_csv(folder / f"{bars}.csv", [row for row in ROWS if row["time"] in DAYS[:bars]])
    return prepare(
        StockTradingConfig.from_options({"table": str(path), "indicators": []}), torch.device("cpu")
    )


@pytest.mark.parametrize(
    ("kwargs", "trained", "selected"),
    [
        ({"train_fraction": 0.5, "validation_fraction": 0.2}, range(5), range(5, 7)),
        ({"train_end": DAYS[3], "validation_end": DAYS[5]}, range(4), range(4, 6)),
        ({"train_end": DAYS[3]}, range(4), range(4, 10)),
        ({"train_end": DAYS[3], "split": "all"}, range(10), range(10)),
        (
            {"train_end": DAYS[3], "evaluation_start": DAYS[7], "evaluation_end": DAYS[8]},
            range(4),
            range(7, 9),
        ),
        ({"train_end": DAYS[3], "evaluation_start": "2040-01-01"}, range(4), range(0)),
    ],
)
def test_by_hand(tmp_path, kwargs, trained, selected):
    for mask, bars in zip(seen_bars(kwargs, market(tmp_path)), (trained, selected), strict=True):
        assert np.flatnonzero(mask).tolist() == list(bars)


def test_what_came_since_is_new(tmp_path):
    """Six days were there at the time, and ten are now."""
    former, longer = market(tmp_path, 6), market(tmp_path)
    kwargs: dict[str, Any] = {"train_fraction": 0.5, "validation_fraction": 0.5}
    told = dated(kwargs, former)
    assert (told["train_end"][:10], told["validation_end"][:10]) == (DAYS[2], DAYS[5])
    trained, selected = seen_bars(told, longer, former.times[-1])
    assert (np.flatnonzero(trained).tolist(), np.flatnonzero(selected).tolist()) == (
        [0, 1, 2],
        [3, 4, 5],
    )
    own = {"train_end": DAYS[1], "validation_end": DAYS[3]}
    assert dated(own, former) == own
    trained, _ = seen_bars({"train_end": DAYS[1], "split": "all"}, longer, former.times[-1])
    assert np.flatnonzero(trained).tolist() == [0, 1, 2, 3, 4, 5]
