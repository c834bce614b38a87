"""Spans and metrics as they were finished and counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.telemetry import CountedMetrics, KeptSpans, counted_metrics, kept_spans


@pytest.fixture
def kept() -> Iterator[KeptSpans]:
    with kept_spans() as kept:
        yield kept


@pytest.fixture
def counted() -> Iterator[CountedMetrics]:
    with counted_metrics() as counted:
        yield counted
