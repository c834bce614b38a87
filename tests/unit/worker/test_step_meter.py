"""Totals and a rate over the last seconds."""

from __future__ import annotations

from podracer_worker.server import StepMeter


def test_the_rate_is_of_the_window_and_the_total_of_all():
    now = [0.0]
    meter = StepMeter(window_s=5.0, clock=lambda: now[0])
    assert meter.per_second() == 0.0
    for _ in range(10):
        meter.add(100)
        now[0] += 1.0
    assert meter.total == 1000
    assert meter.per_second() == 100.0
    now[0] += 60.0
    assert meter.per_second() == 0.0
    assert meter.total == 1000
