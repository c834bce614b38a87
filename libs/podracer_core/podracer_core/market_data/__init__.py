"""Price tables: what is done with them without torch, for StockTrading-v0 and `podracer data`.

reading       CSV, Parquet or Arrow -> columns
wall_clock    times with a zone
table         … checked, ticker by ticker in the order of time; tickers on one time axis, gaps as the user says
ex_rights     unadjusted ex-rights dates found and smoothed
canonical     the one Parquet file that a table is stored as, and new bars behind those that it has
inspection    what is remarkable about a table: gaps, splits, jumps
synthetic     invented markets

This file says how a table is refused; pyarrow and talib are imported when a table is opened.
"""

from __future__ import annotations

import importlib
from typing import Any

from podracer_core.errors import InvalidInput, PreconditionFailed

FIELD = "environment.kwargs"

COLUMNS = ("ticker", "time", "open", "high", "low", "close", "volume")
"""Of every table."""


def refusal(name: str, message: str) -> InvalidInput:
    """The error that blames one argument of the constructor of StockTrading-v0, where tables come to their use."""
    return InvalidInput(message, field=f"{FIELD}.{name}")


def trading_library(module: str) -> Any:
    """The module of that name. Raises PreconditionFailed where the extra is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"market data needs {module}, which cannot be imported here ({error}); "
        message += "install podracer-core[trading]"
        raise PreconditionFailed(message, reason="EXTRA_NOT_INSTALLED", module=module) from error
