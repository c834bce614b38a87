"""Several learner processes of one agent under an orchestrator that is scripted: LEAD and
FOLLOW."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.checkpoint import load_checkpoint
from podracer_platform.storage import open_store

MakeWork = Callable[..., pod_service_pb2.TrainWork]

ENVS, HORIZON = 8, 16

pytestmark = pytest.mark.processes


def start(lab: Any, name: str) -> None:
    lab.start(
        "learner", name, orchestrator=lab.addresses["orchestrator"], pod=f"projects/p/pods/{name}"
    )


def follow(lab: Any, lead: Any, rank: int) -> Any:
    work = pod_service_pb2.FollowWork(
        lead_address=lab.addresses["lead"],
        rank=rank,
        lead_fence=lead.lease.fence,
        train=lead.lease.train,
    )
    return lab.orchestrator.offer(follow=work)


def until(condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def log_says(lab: Any, name: str, text: str, times: int = 1) -> None:
    until(
        lambda: lab.log(name).count(text) >= times,
        f"{name} never said {text!r}: {lab.log(name)[-2000:]}",
    )


def assert_exact(
    lab: Any, work: pod_service_pb2.TrainWork, result: pod_service_pb2.TrainResult
) -> None:
    """What is counted is what the agents have learned from: once, and with all learners' part in
    it."""
    for member in result.members:
        reference = member.final.checkpoint
        groups = load_checkpoint(
            open_store(lab.store), reference.prefix, reference.manifest_sha256
        ).groups
        env_steps = member.final.progress.env_steps
        assert env_steps == reference.env_steps
        assert env_steps % ENVS == 0  # the last rollout ends early
        assert groups["random"]["transition_count"] == env_steps
        assert groups["normalizer"]["observations.count"] == env_steps
        assert groups["random"]["step_count"] * ENVS < env_steps, "the followers' part is missing"
    assert len({member.final.progress.env_steps for member in result.members}) == 1


@pytest.fixture
def work(train_work: MakeWork) -> pod_service_pb2.TrainWork:
    """With normalized observations; it goes on until it is told to finish."""
    made = train_work(
        members=2,
        envs=ENVS,
        seconds=120.0,
        hyperparameters={"normalize_observations": True},
        follower_count=2,
    )
    made.fusion.fusion = "weighted"
    return made


def told_steps(granted: Any) -> int:
    """Of the first member, by the newest renewal that tells it."""
    told = [renewal.members[0].env_steps for renewal in granted.renewals if renewal.members]
    return told[-1] if told else 0


def test_learners_fuse_lose_one_take_one_in_and_stop(lab, work):
    start(lab, "lead")
    lead = lab.orchestrator.offer(train=work)
    until(lambda: bool(lead.renewals), "the lead has no lease")
    followers = []
    for rank in (1, 2):
        start(lab, f"follower{rank}")
        followers.append(follow(lab, lead, rank))
        log_says(lab, f"follower{rank}", f"as rank {rank} from fusion")
    lab.kill("follower2")
    log_says(lab, "lead", "follower 2 has left")
    start(lab, "late")
    late = follow(lab, lead, 2)
    log_says(lab, "lead", "follower 2 has joined", times=2)
    steps = told_steps(lead)
    until(lambda: told_steps(lead) > steps + 10 * 3 * ENVS * HORIZON, "the lead has stopped")
    lead.action = pod_service_pb2.LEASE_ACTION_FINISH
    assert lead.over.wait(60)
    assert lead.completed is not None, lead.released
    assert_exact(lab, work, lead.completed.train)
    for name, granted in (("follower1", followers[0]), ("late", late)):
        assert granted.over.wait(60)
        assert granted.released.reason.reason == "ROUND_OVER"
        assert lab.log(name).count("the lead ended the round: the lead has finished its round") == 1
        assert granted.completed is None
        assert not granted.commits
    for _ in range(3):
        lab.orchestrator.offer(exit=pod_service_pb2.ExitWork(reason="enough"))
    for name in ("lead", "follower1", "late"):
        assert lab.processes[name].wait(60) == 0, lab.log(name)


def test_a_follower_whose_lead_is_killed_leaves_and_leases_again(lab, work):
    work.fusion.deadline.FromMilliseconds(500)
    start(lab, "lead")
    lead = lab.orchestrator.offer(train=work)
    until(lambda: bool(lead.renewals), "the lead has no lease")
    start(lab, "follower")
    granted = follow(lab, lead, 1)
    log_says(lab, "follower", "as rank 1 from fusion")
    lab.kill("lead")
    assert granted.over.wait(60)
    assert granted.released.reason.reason == "LEAD_LOST"
    lab.orchestrator.offer(exit=pod_service_pb2.ExitWork(reason="enough"))
    assert lab.processes["follower"].wait(60) == 0


def test_a_fusion_that_is_not_installed_is_the_works_problem(lab, work):
    work.fusion.fusion = "median"
    start(lab, "lead")
    lead = lab.orchestrator.offer(train=work)
    assert lead.over.wait(60)
    assert lead.completed.problem.reason == "UNKNOWN_EXTENSION"
    assert (
        "no fusion 'median' is installed; there are: mean, outer, weighted"
        in lead.completed.problem.message
    )
