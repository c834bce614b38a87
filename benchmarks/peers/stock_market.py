"""The market that the benchmarks trade in: random walks of 30 stocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

STOCKS, BARS = 30, 1500


def write_market(path: Path) -> Path:
    """Write the price table; the same every time. Returns its full path."""
    random = np.random.default_rng(0)
    close = 50 * np.exp(np.cumsum(random.normal(3e-4, 0.015, (BARS, STOCKS)), axis=0))
    first = np.datetime64("2018-01-01")
    with path.open("w") as file:
        file.write("ticker,time,open,high,low,close,volume\n")
        for bar, prices in enumerate(close):
            opened = close[max(bar - 1, 0)]
            for stock, price in enumerate(prices):
                low, high = 0.995 * min(price, opened[stock]), 1.005 * max(price, opened[stock])
                shown = ",".join(f"{each:.4f}" for each in (opened[stock], high, low, price))
                volume = random.integers(10**4, 10**6)
                file.write(f"S{stock:02},{first + bar},{shown},{volume}\n")
    return path.resolve()
