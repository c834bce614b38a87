"""Deadlines on a clock that the test moves."""

from __future__ import annotations

import pytest

from podracer_core.errors import Fenced
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.terms import LeaseTerms, LiveReport


class ManualClock(Clock):
    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def test_a_lease_runs_for_its_term_and_a_renewal_gives_it_another():
    clock = ManualClock()
    terms = LeaseTerms(clock, 10.0)
    terms.begin(7, "job")
    clock.seconds += 9.9
    terms.renew(7)
    clock.seconds += 9.9
    terms.check(7)
    assert terms.expired() == []
    clock.seconds += 0.1
    assert terms.expired() == [7]
    for call in (terms.check, terms.renew):
        with pytest.raises(Fenced):
            call(7)


def test_an_unknown_or_ended_lease_is_fenced():
    terms = LeaseTerms(ManualClock(), 10.0)
    with pytest.raises(Fenced):
        terms.check(1)
    terms.begin(1, "job")
    terms.end(1)
    with pytest.raises(Fenced):
        terms.renew(1)
    terms.end(1)


def test_live_reports_are_forgotten_with_their_lease():
    clock = ManualClock()
    terms = LeaseTerms(clock, 10.0)
    for fence in (1, 2):
        terms.begin(fence, "job")
        terms.renew(fence, LiveReport({"a": 5}, 100.0))
    assert terms.env_steps_per_second([1, 2, 3]) == 200.0
    terms.end(1)
    assert terms.env_steps_per_second([1, 2, 3]) == 100.0
    assert terms.next_deadline() == 110.0
