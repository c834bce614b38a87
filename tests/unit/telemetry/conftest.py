"""Spans as they were finished."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from podracer_core.telemetry.spans import FinishedSpan, SpanSink, record_spans


class Kept(SpanSink):
    """Keeps them."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def add(self, finished: FinishedSpan) -> None:
        self.spans.append(finished)

    def __getitem__(self, name: str) -> FinishedSpan:
        (found,) = [one for one in self.spans if one.name == name]
        return found


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Spans are recorded while the test runs."""
    sink = Kept()
    record_spans([sink])
    yield sink
    record_spans([])
