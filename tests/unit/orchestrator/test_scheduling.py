"""Who gets pods and who gets work."""

from __future__ import annotations

from podracer_orchestrator.scheduling import Demand, Load, fairest_first, share_pods


def demand(uid: str, least: int = 1, most: int = 1, weight: float = 1.0, cpu: float = 1.0) -> Demand:
    return Demand(uid, weight, least, most, cpu)


def test_least_held_for_its_weight_comes_first_then_the_oldest():
    loads = [Load("a", 1.0, 2), Load("b", 4.0, 4), Load("c", 1.0, 1)]
    assert fairest_first(loads) == ["b", "c", "a"]


def test_one_job_gets_what_it_wants_up_to_the_cores():
    assert share_pods([demand("a", 1, 2)], cores=2, max_pods=64) == {"a": 2}
    assert share_pods([demand("a", 1, 8)], cores=4, max_pods=64) == {"a": 4}
    assert share_pods([demand("a", 1, 8, cpu=2.0)], cores=4, max_pods=64) == {"a": 2}
    assert share_pods([demand("a", 1, 8)], cores=4, max_pods=3) == {"a": 3}


def test_a_machine_too_small_still_runs_one_pod():
    assert share_pods([demand("a", 2, 2, cpu=8.0), demand("b", cpu=8.0)], cores=2, max_pods=64) == {"a": 1, "b": 0}


def test_the_oldest_gets_its_minimum_first_and_the_rest_goes_by_weight():
    jobs = [demand("a", 1, 9), demand("b", 1, 9, weight=2.0)]
    assert share_pods(jobs, cores=6, max_pods=64) == {"a": 2, "b": 4}
    assert share_pods([demand("a", 3, 3), demand("b", 1, 1)], cores=3, max_pods=64) == {"a": 3, "b": 0}


def test_nobody_wants_anything():
    assert share_pods([], cores=2, max_pods=64) == {}
    assert fairest_first([]) == []
