"""Teams of several learners: ranks, which pods stay, what a machine has room for, what a lead is
told of fusion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from podracer.orchestrator.v1 import job_pb2
from podracer_orchestrator.jobs import PodKind
from podracer_orchestrator.leases import followers, lease_messages
from podracer_orchestrator.pool import choose_pods
from podracer_orchestrator.tables import JobRow, LeaseRow, PodRow, PodState, WorkKind

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("taken", "learners", "rank"),
    [
        ((), 1, None),
        ((), 2, 1),
        ((1,), 2, None),
        ((1, 3), 4, 2),
        ((2, 3), 4, 1),
        ((1, 2, 3), 4, None),
        ((), 5, 1),
    ],
)
def test_a_follower_gets_the_lowest_free_rank(taken, learners, rank):
    assert followers.free_rank(taken, learners) == rank


def test_what_a_follower_costs_is_counted_from_where_it_was_counted_last():
    job = JobRow(cost_s=5.0)
    lease = LeaseRow(cost_s=0.0, cost_since=NOW)
    for seconds in (3, 3, 7, 6):  # the clock may be set back: nothing is taken away
        followers.count_cost(job, lease, NOW + timedelta(seconds=seconds))
    assert (lease.cost_s, job.cost_s) == (7.0, 12.0)
    lease.cost_since = None
    followers.count_cost(job, lease, NOW + timedelta(seconds=50))
    assert job.cost_s == 12.0


def test_a_lead_trains_on_until_its_lease_says():
    lease = LeaseRow(time_s=15.0, grant_time=NOW)
    assert followers.time_left_s(lease, NOW + timedelta(seconds=4)) == 11.0
    assert followers.time_left_s(lease, NOW + timedelta(seconds=40)) == 0.0
    assert [followers.is_over(lease, NOW + timedelta(seconds=seconds)) for seconds in (4, 14, 15, 40)] == [
        False, False, True, True,
    ]  # fmt: skip
    unlimited = LeaseRow(time_s=None, grant_time=NOW)
    assert followers.time_left_s(unlimited, NOW) == 0.0
    assert not followers.is_over(unlimited, NOW + timedelta(days=1))


def test_of_the_pods_that_are_one_too_many_a_follower_goes_before_a_lead():
    names = [f"projects/default/pods/fused-{index}" for index in range(3)]
    there = [PodRow(name=name, kind="fused", state=PodState.WORKING) for name in names]
    held = [
        LeaseRow(pod=names[0], kind=WorkKind.FOLLOW),
        LeaseRow(pod=names[1], kind=WorkKind.CHALLENGE),
        LeaseRow(pod=names[2], kind=WorkKind.TRAIN),
    ]
    choice = choose_pods({PodKind(): 2}, there, held)
    assert [pod.name for pod in choice.surplus] == names[:1]
    idle = PodRow(name="projects/default/pods/fused-9", kind="fused", state=PodState.IDLE)
    choice = choose_pods({PodKind(): 3}, [idle, *there], held)
    assert [pod.name for pod in choice.surplus] == [idle.name]


def test_what_a_job_leaves_open_of_its_fusion_stays_open():
    told = lease_messages.fusion_spec(job_pb2.Fusion())
    assert (told.fusion, told.interval_updates, told.quorum) == ("", 0, 0)
    assert not any(
        told.HasField(field) for field in ("deadline", "outer_learning_rate", "outer_momentum")
    )
    asked = job_pb2.Fusion(name="outer", quorum=3, learning_rate=0.5, momentum=0.0)
    asked.deadline.FromMilliseconds(250)
    told = lease_messages.fusion_spec(asked)
    assert (told.fusion, told.quorum, told.outer_learning_rate, told.outer_momentum) == (
        "outer",
        3,
        0.5,
        0.0,
    )
    assert told.HasField("outer_momentum")
    assert told.deadline.ToMilliseconds() == 250
