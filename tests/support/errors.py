"""Errors by their class, reason and fields instead of the words of their messages, which
tests/golden has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from podracer_core.errors import InvalidInput, PodracerError

Error = TypeVar("Error", bound=PodracerError)


@contextmanager
def raises(
    kind: type[Error], reason: str = "", *, field: str = "", match: str = ""
) -> Iterator[pytest.ExceptionInfo[Error]]:
    """`pytest.raises` of an error that has this reason, and this one bad field. `match`: a value or
    two telling words, where several errors have both in common."""
    with pytest.raises(kind, match=match or None) as caught:
        yield caught
    error = caught.value
    assert reason in ("", error.reason), error
    if field:
        assert isinstance(error, InvalidInput)
        assert [violation.field for violation in error.violations] == [field], error
