"""Gathers the mistakes in a job."""

from __future__ import annotations

import re

from podracer_core.errors import FieldViolation, InvalidInput

MAX_COUNT = (1 << 62) - 1
"""The greatest count: two of them can be added without overflow in every part of the system."""

_EXTENSION = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def is_extension_name(text: str) -> bool:
    """Whether `text` is a valid name of an installed generator, updater or fusion."""
    return _EXTENSION.fullmatch(text) is not None


class Checks:
    """Gathers violations; a condition that NaN is part of must be written so that NaN fails it."""

    def __init__(self) -> None:
        self.violations: list[FieldViolation] = []

    def that(self, condition: bool, field: str, message: str) -> bool:
        """Note `message` unless the condition holds. Returns the condition."""
        if not condition:
            self.violations.append(FieldViolation(field, message))
        return condition

    def between(self, value: float | None, low: float, high: float, field: str) -> bool:
        """Require `low <= value <= high`. None is valid: it stands for a default."""
        if value is None:
            return True
        return self.that(
            low <= value <= high, field, f"expected {low:_} to {high:_}, got {value!r}"
        )

    def positive(self, value: float | None, high: float, field: str) -> bool:
        """Require a value above 0. None is valid: it stands for a default."""
        if value is None or 0 < value <= high:
            return True
        most = f" and at most {high:_}" if value > high else ""
        return self.that(False, field, f"expected more than 0{most}, got {value!r}")

    def finish(self) -> None:
        """Raises InvalidInput with all noted mistakes."""
        if self.violations:
            message = "\n".join(str(violation) for violation in self.violations)
            raise InvalidInput(message, violations=self.violations, reason="INVALID_JOB")
