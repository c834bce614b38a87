"""How a table, or an argument that tells of one, is refused."""

from __future__ import annotations

import importlib
from typing import Any

from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed

FIELD = "environment.kwargs"


def refusal(name: str, message: str) -> InvalidInput:
    """The error that blames one argument of the constructor of StockTrading-v0, where tables come to their use."""
    return InvalidInput(message, violations=[FieldViolation(f"{FIELD}.{name}", message)])


def trading_library(module: str) -> Any:
    """The module of that name. Raises PreconditionFailed where the extra is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"market data needs {module}, which cannot be imported here ({error}); "
        message += "install podracer-core[trading]"
        raise PreconditionFailed(message, reason="EXTRA_NOT_INSTALLED", module=module) from error
