"""The columns of every table, and the error for a refused one; without NumPy, for `info`."""

from __future__ import annotations

import importlib
from typing import Any

from podracer_core.errors import InvalidInput, PreconditionFailed

FIELD = "environment.kwargs"

COLUMNS = ("ticker", "time", "open", "high", "low", "close", "volume")
"""The columns of every table."""


def refusal(name: str, message: str) -> InvalidInput:
    """The error for one argument of the constructor of StockTrading-v0, which uses the tables."""
    return InvalidInput(message, field=f"{FIELD}.{name}")


def trading_library(module: str) -> Any:
    """The module of that name. Raises PreconditionFailed if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"market data needs {module}, which cannot be imported here ({error}); "
        message += "install podracer-trading"
        raise PreconditionFailed(message, reason="EXTRA_NOT_INSTALLED", module=module) from error
