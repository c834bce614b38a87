"""Deadlines on a clock that the test moves."""

from __future__ import annotations

import pytest

from podracer_core.errors import Fenced
from podracer_orchestrator.leases import LeaseDeadlines, LiveReport
from podracer_orchestrator.transactions import Clock


class ManualClock(Clock):
    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def test_a_lease_runs_for_its_term_and_a_renewal_gives_it_another():
    clock = ManualClock()
    deadlines = LeaseDeadlines(clock, 10.0)
    deadlines.begin(7, "job")
    clock.seconds += 9.9
    deadlines.renew(7)
    clock.seconds += 9.9
    deadlines.check(7)
    assert deadlines.expired() == []
    clock.seconds += 0.1
    assert deadlines.expired() == [7]
    for call in (deadlines.check, deadlines.renew):
        with pytest.raises(Fenced):
            call(7)


def test_an_unknown_or_ended_lease_is_fenced():
    deadlines = LeaseDeadlines(ManualClock(), 10.0)
    with pytest.raises(Fenced):
        deadlines.check(1)
    deadlines.begin(1, "job")
    deadlines.end(1)
    with pytest.raises(Fenced):
        deadlines.renew(1)
    deadlines.end(1)


def test_live_reports_are_forgotten_with_their_lease():
    clock = ManualClock()
    deadlines = LeaseDeadlines(clock, 10.0)
    for fence in (1, 2):
        deadlines.begin(fence, "job")
        deadlines.renew(fence, LiveReport({"a": 5}, 100.0))
    assert deadlines.env_steps_per_second([1, 2, 3]) == 200.0
    deadlines.end(1)
    assert deadlines.env_steps_per_second([1, 2, 3]) == 100.0
    assert deadlines.next_deadline() == 110.0
