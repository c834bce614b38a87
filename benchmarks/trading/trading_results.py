"""The seasons of trading.py, and the file in which its finished runs are kept, a JSON
line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Returns = Mapping[str, NDArray[np.float64]]
"""By method, daily ones of the test year: [seeds, D]; the same days of all."""

HALF_YEARS = {2017}
"""Test years before which half a year selects, and the other one trains: the prices begin in 2015,
and the first year goes into indicators."""


@dataclass(frozen=True)
class Season:
    """The test year, and whether prices are adjusted at ex-rights dates: "auto" or "none"."""

    year: int
    adjust: str

    @property
    def end(self) -> str:
        """The last day of the test."""
        return f"{self.year}-12-31"

    @property
    def title(self) -> str:
        """For people."""
        return (
            f"{self.year}, {'adjusted prices' if self.adjust == 'auto' else 'prices as they are'}"
        )

    def arguments(self, columns: Mapping[str, str], max_stock: int) -> dict[str, Any]:
        """Of StockTrading-v0, in training and selection: the year before the test selects, all
        before that trains."""
        train_end = (
            f"{self.year - 2}-12-31" if self.year not in HALF_YEARS else f"{self.year - 1}-06-30"
        )
        return {
            "columns": dict(columns),
            "gaps": "forward_fill",
            "train_end": train_end,
            "validation_end": f"{self.year - 1}-12-31",
            "score": "sharpe_ratio",
            "adjust": self.adjust,
            "max_stock": max_stock,
            "buy_cost": 0.001,
            "sell_cost": 0.002,
        }


class Results:
    """Lines of a run's key (what it depends on) and its daily returns. One program writes at a
    time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def find(self, key: Mapping[str, Any]) -> list[float] | None:
        """The returns of a run that has ended. A line that was cut off while it was written counts
        for nothing."""
        lines = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
        found = (json.loads(line) for line in lines if line.endswith("}\n"))
        return next((run["returns"] for run in found if key.items() <= run["key"].items()), None)

    def add(self, key: Mapping[str, Any], returns: list[float]) -> None:
        """A run has ended."""
        text = json.dumps({"key": dict(key), "returns": returns}) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+") as file:
            file.seek(0)
            before = file.read()
            file.write(text if before.endswith("\n") or not before else "\n" + text)
