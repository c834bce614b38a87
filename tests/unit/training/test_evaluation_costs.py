"""Evaluation keeps to its part of the time."""

from __future__ import annotations

import pytest

from podracer_core.training.evaluation_costs import EvaluationSchedule


def spend(
    schedule: EvaluationSchedule, until_s: float, cost_s: float, *, promising: bool = False
) -> int:
    """Train in steps of 10 ms, looking whenever it is due; how many looks."""
    looks, elapsed_s = 0, 0.0
    while elapsed_s < until_s:
        elapsed_s += 0.01
        if schedule.is_due(elapsed_s, cost_s, promising=promising):
            elapsed_s += cost_s
            schedule.record(elapsed_s, cost_s, screening=True)
            looks += 1
    return looks


def test_without_a_target_the_fraction_holds_at_every_moment_after_the_first_look() -> None:
    schedule = EvaluationSchedule(0.2, hunting=False)
    spend(schedule, 100.0, 0.5)
    assert schedule.spent_s <= 0.2 * 100.5
    assert schedule.spent_s >= 0.19 * 100.0


def test_over_a_round_of_known_length_the_fraction_holds_while_a_target_is_hunted() -> None:
    schedule = EvaluationSchedule(0.2, round_s=15.0, hunting=True)
    spend(schedule, 15.0, 0.2, promising=True)
    assert schedule.spent_s <= 0.2 * 15.2


@pytest.mark.parametrize("hunting", [True, False])
@pytest.mark.parametrize("cost_s", [0.05, 0.4, 0.95])
def test_over_a_round_of_known_length_the_fraction_holds_with_what_its_end_costs(
    cost_s: float, hunting: bool
) -> None:
    schedule = EvaluationSchedule(0.2, round_s=15.0, hunting=hunting)
    spend(schedule, 15.0, cost_s)
    assert schedule.spent_s + 2 * cost_s <= 0.2 * 15.0 + 1e-9


def test_the_first_look_comes_at_once_where_it_is_cheap_and_late_where_it_is_dear() -> None:
    assert EvaluationSchedule(0.2, hunting=True).is_due(0.01, 0.3, promising=False)
    dear = EvaluationSchedule(0.2, hunting=True)
    assert not dear.is_due(1.0, 10.0, promising=False)
    assert dear.is_due(45.1, 10.0, promising=False)


def test_near_the_target_looks_come_more_often() -> None:
    far, near = (EvaluationSchedule(0.2, hunting=True) for _ in range(2))
    assert spend(near, 1.5, 0.1, promising=True) > spend(far, 1.5, 0.1, promising=False)


@pytest.mark.parametrize("blocking", [True, False])
def test_where_training_goes_on_meanwhile_it_takes_as_much_of_the_machine(blocking: bool) -> None:
    schedule = EvaluationSchedule(0.2, hunting=False, blocking=blocking)
    assert schedule.allows(10.0, 2.0)
    assert not schedule.allows(10.0, 2.1)
