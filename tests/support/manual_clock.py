"""A clock for tests of the orchestrator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from podracer_orchestrator.transactions import Clock


class ManualClock(Clock):
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)
