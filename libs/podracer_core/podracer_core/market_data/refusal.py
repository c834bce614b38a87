"""How a table, or an argument that tells of one, is refused."""

from __future__ import annotations

from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["FIELD", "refusal"]

FIELD = "environment.kwargs"


def refusal(name: str, message: str) -> InvalidInput:
    """The error that blames one argument of the constructor of StockTrading-v0, where tables come to their use."""
    return InvalidInput(message, violations=[FieldViolation(f"{FIELD}.{name}", message)])
