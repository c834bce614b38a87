"""Which of many get a span."""

from __future__ import annotations

from podracer_core.training import Occasions, Phases


def test_the_first_ones_and_ever_fewer_of_the_others():
    now = 0.0
    occasions = Occasions(lambda: now)
    taken = []
    for second in range(24 * 3600):
        now = float(second)
        if occasions.is_next():
            taken.append(second)
    assert taken[:6] == [0, 1, 2, 7, 17, 37]
    assert len(taken) < 20


def test_phases_add_up():
    now = [0.0]
    phases = Phases(clock=lambda: now[0])
    for _ in range(3):
        phases.next_iteration()
        with phases.phase("collect"):
            now[0] += 2.0
        with phases.phase("update"), phases.part("gradient steps"):
            now[0] += 0.5
    assert phases.seconds == {"collect": 6.0, "update": 1.5}
    assert phases.attributes == {"seconds.collect": 6.0, "seconds.update": 1.5, "iterations": 3}
