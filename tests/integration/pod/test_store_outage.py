"""A pod whose object store is a real S3 server that dies, freezes and comes back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.checkpoint import load_checkpoint
from podracer_core.storage import ObjectStore
from podracer_platform.rpc import health_of
from podracer_platform.storage import open_store
from support.processes import wait_until
from support.s3_server import PROGRAMS, S3Server, default_program, each_program

pytestmark = pytest.mark.processes


LASTING = each_program(*(name for name, program in PROGRAMS.items() if program.keeps))


@pytest.fixture
def s3(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(tmp_path / "buckets", program=getattr(request, "param", default_program()))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3_lab(lab: Any, s3: S3Server) -> Any:
    """A fused pod whose checkpoints go to the server."""
    start_learner(lab, s3, s3_attempts="2", s3_read_timeout="2s")
    return lab


def start_learner(lab: Any, s3: S3Server, **settings: str) -> None:
    """A learner that has no keys: it asks the orchestrator."""
    lab.store = "s3://podracer"
    lab.orchestrator.store = store_of(lab, s3)
    lab.start_learner(s3_endpoint=s3.endpoint, spool_dir=str(lab.folder / "spool"), **settings)


def steps(granted: Any) -> int:
    return (
        granted.renewals[-1].members[0].env_steps
        if granted.renewals and granted.renewals[-1].members
        else 0
    )


def store_of(lab: Any, s3: S3Server) -> ObjectStore:
    return open_store(lab.store, s3.settings)


def committed_are_there(granted: Any, store: ObjectStore) -> int:
    """Every checkpoint that counts can be read and is what was committed; returns how many."""
    references = [member.checkpoint for commit in granted.commits for member in commit.members]
    if granted.completed is not None:
        references += [member.final.checkpoint for member in granted.completed.train.members]
    for reference in references:
        load_checkpoint(store, reference.prefix, reference.manifest_sha256)
    return len(references)


def nothing_waits(lab: Any) -> None:
    wait_until(
        lambda: not [path for path in (lab.folder / "spool").glob("*/*") if path.name != ".lock"]
    )


def often(work: pod_service_pb2.TrainWork) -> pod_service_pb2.TrainWork:
    work.checkpoint_interval.FromMilliseconds(300)
    return work


def test_a_pod_waits_for_the_store_before_it_leases(lab, s3, train_work):
    s3.stop()
    health = f"unix://{lab.folder}/health"
    start_learner(lab, s3, health_listen=health)
    granted = lab.orchestrator.offer(train=train_work(steps=128))
    place = f"not ready: the object store: s3://podracer at {s3.endpoint} is away: "
    wait_until(lambda: place in lab.log("learner") and health_of(health) == "NOT_SERVING")
    assert health_of(health, "liveness") == "SERVING"
    assert lab.orchestrator.requests == []
    s3.start()
    lab.orchestrator.store.check()  # makes the bucket
    assert granted.over.wait(60)
    assert granted.completed is not None
    assert health_of(health) == "SERVING"
    assert lab.log("learner").count("not ready") == 1


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_training_goes_on_while_the_store_is_away_and_everything_arrives(
    s3_lab, s3, train_work, fault
):
    granted = s3_lab.orchestrator.offer(train=often(train_work(seconds=300)), term_s=5.0)
    wait_until(lambda: len(granted.commits) >= 2)
    s3.stop() if fault == "killed" else s3.freeze()
    time.sleep(1.0)
    commits = len(granted.commits)
    for _ in range(4):  # training goes on
        before = steps(granted)
        wait_until(lambda before=before: steps(granted) > before)
    assert len(granted.commits) <= commits + 1, "what is not in the store was committed"
    s3.start() if fault == "killed" else s3.thaw()
    wait_until(lambda: len(granted.commits) >= commits + 3)
    granted.action = pod_service_pb2.LEASE_ACTION_FINISH
    assert granted.over.wait(60)
    assert granted.completed is not None
    assert committed_are_there(granted, store_of(s3_lab, s3)) >= 10
    nothing_waits(s3_lab)


@pytest.mark.parametrize("s3", LASTING, indirect=True)
def test_the_end_of_a_round_waits_for_the_store(s3_lab, s3, train_work):
    granted = s3_lab.orchestrator.offer(train=train_work(seconds=300), term_s=5.0)
    wait_until(lambda: steps(granted) > 0)
    s3.stop()
    granted.action = pod_service_pb2.LEASE_ACTION_FINISH
    wait_until(lambda: "waiting to store an object" in s3_lab.log("learner"))
    time.sleep(2.0)
    assert not granted.over.is_set()
    s3.start()
    assert granted.over.wait(60)
    assert granted.completed is not None
    assert committed_are_there(granted, store_of(s3_lab, s3)) == 2
    rest = train_work(steps=128)
    for agent, member in zip(rest.cohort.members, granted.completed.train.members, strict=True):
        agent.resume.CopyFrom(member.final.checkpoint)
    s3.stop()
    after = s3_lab.orchestrator.offer(train=rest, term_s=5.0)
    time.sleep(4.0)
    assert not after.over.is_set(), "the round ends once its checkpoint is stored"
    s3.start()
    assert after.over.wait(60)
    assert after.completed is not None
    nothing_waits(s3_lab)


def test_patience_with_the_store_has_an_end(lab, s3, train_work):
    start_learner(lab, s3, s3_attempts="1", store_patience="1s")
    granted = lab.orchestrator.offer(train=train_work(seconds=300), term_s=5.0)
    wait_until(lambda: steps(granted) > 0)
    s3.stop()
    granted.action = pod_service_pb2.LEASE_ACTION_FINISH
    assert granted.over.wait(60)
    assert granted.released.reason.reason == "STORE_AWAY"
    assert "s3://podracer" in granted.released.reason.message
    nothing_waits(lab)


@pytest.mark.thorough
def test_sigterm_while_the_store_is_away_ends_the_wait(s3_lab, s3, train_work):
    granted = s3_lab.orchestrator.offer(train=often(train_work(seconds=300)), term_s=5.0)
    wait_until(lambda: len(granted.commits) >= 1)
    s3.stop()
    time.sleep(1.0)
    s3_lab.kill("learner", signal.SIGTERM)
    assert s3_lab.processes["learner"].wait(60) == 0
    assert granted.released.reason.reason == "STORE_AWAY"
    assert not [path for path in (s3_lab.folder / "spool").iterdir() if path.is_dir()]
    s3.start()
    assert committed_are_there(granted, store_of(s3_lab, s3)) >= 2


def test_a_killed_pod_leaves_a_spool_that_the_next_one_sweeps(s3_lab, s3, train_work):
    granted = s3_lab.orchestrator.offer(train=often(train_work(seconds=300)), term_s=5.0)
    wait_until(lambda: len(granted.commits) >= 1)
    s3.stop()
    time.sleep(1.0)
    s3_lab.kill("learner")
    s3_lab.processes["learner"].wait(60)
    assert len([path for path in (s3_lab.folder / "spool").iterdir() if path.is_dir()]) == 1
    s3.start()
    start_learner(s3_lab, s3)
    after = s3_lab.orchestrator.offer(train=train_work(steps=128))
    assert after.over.wait(60)
    assert after.completed is not None
    s3_lab.kill("learner", signal.SIGTERM)
    assert s3_lab.processes["learner"].wait(60) == 0
    assert not [path for path in (s3_lab.folder / "spool").iterdir() if path.is_dir()]
    assert committed_are_there(granted, store_of(s3_lab, s3)) >= 2
