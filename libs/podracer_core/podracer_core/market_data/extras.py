"""Libraries of the extra `podracer-core[trading]`, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from podracer_core.errors import PreconditionFailed

__all__ = ["trading_library"]


def trading_library(module: str) -> Any:
    """The module of that name. Raises PreconditionFailed where the extra is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"market data needs {module}, which cannot be imported here ({error}); "
        message += "install podracer-core[trading]"
        raise PreconditionFailed(message, reason="EXTRA_NOT_INSTALLED", module=module) from error
