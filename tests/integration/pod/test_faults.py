"""Processes that are killed, frozen, cut off or told to stop while a pod works."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest

from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.checkpoint import load_checkpoint
from podracer_core.errors import Unavailable
from podracer_platform.storage import open_store
from support.processes import wait_until

pytestmark = pytest.mark.processes


def progress(granted: Any) -> int:
    """Steps of the first member, as last told."""
    return (
        granted.renewals[-1].members[0].env_steps
        if granted.renewals and granted.renewals[-1].members
        else 0
    )


def restart(lab: Any, role: str, name: str) -> None:
    """Start a killed process again at its old address."""
    lab.processes[name].wait(60)
    lab.start(role, name)


@pytest.mark.parametrize(
    "lock_step",
    [
        pytest.param(False, marks=pytest.mark.thorough, id="pipelined"),
        pytest.param(True, id="lock-step"),
    ],
)
def test_a_killed_worker_comes_back_and_no_step_counts_twice(lab, train_work, lock_step):
    lab.start_split()
    granted = lab.orchestrator.offer(
        train=train_work(steps=16 * 8 * 150, deterministic=lock_step), term_s=5.0
    )
    wait_until(lambda: progress(granted) > 0)
    for _ in range(2):
        lab.kill("worker0")
        before = progress(granted)
        restart(lab, "worker", "worker0")
        wait_until(lambda before=before: granted.over.is_set() or progress(granted) > before)
    assert granted.over.wait(60)
    members = granted.completed.train.members
    assert [member.final.progress.env_steps for member in members] == [16 * 8 * 150] * 2
    steps = [renewal.members[0].env_steps for renewal in granted.renewals if renewal.members]
    assert steps == sorted(steps)


def test_a_worker_that_stays_away_ends_the_lease_in_bounded_time(lab, train_work):
    lab.start_split(peer_patience="2")
    granted = lab.orchestrator.offer(train=train_work(seconds=300), term_s=5.0)
    wait_until(lambda: progress(granted) > 0)
    lab.kill("worker0")
    assert granted.over.wait(60)
    assert granted.released.reason.reason == "WORKER_LOST"
    assert granted.commits[-1].members[0].progress.env_steps > 0
    restart(lab, "worker", "worker0")
    after = lab.orchestrator.offer(train=train_work(steps=128))
    assert after.over.wait(60)
    assert after.completed is not None


@pytest.mark.thorough
def test_training_goes_on_without_an_evaluator_and_waits_for_it_at_the_end(lab, train_work):
    """A round of limited steps: one of limited seconds would give up half its length after its
    end."""
    steps = 16 * 8 * 500
    lab.start_split()
    granted = lab.orchestrator.offer(train=train_work(steps=steps), term_s=2.0)
    wait_until(lambda: progress(granted) > 0)
    lab.kill("evaluator")
    lab.processes["evaluator"].wait(60)
    wait_until(lambda: progress(granted) == steps)
    assert not granted.over.is_set(), "candidates cannot be judged yet"
    restart(lab, "evaluator", "evaluator")
    assert granted.over.wait(60)
    assert any(member.HasField("candidate") for member in granted.completed.train.members)


@pytest.mark.thorough
def test_an_evaluator_that_stays_away_ends_the_lease_with_everything_committed(lab, train_work):
    lab.start_split(peer_patience="2")
    granted = lab.orchestrator.offer(train=train_work(steps=16 * 8 * 100), term_s=5.0)
    wait_until(lambda: progress(granted) > 0)
    lab.kill("evaluator")
    assert granted.over.wait(60)
    assert granted.released.reason.reason == "NO_EVALUATION"
    assert granted.commits[-1].members[0].progress.env_steps == 16 * 8 * 100


@pytest.mark.thorough
def test_an_evaluator_that_is_killed_while_it_judges_is_asked_again(lab, train_work):
    lab.start_split()
    granted = lab.orchestrator.offer(
        train=train_work("Pendulum-v1", steps=16 * 8 * 500, episodes=200), term_s=5.0
    )
    for sessions in (1, 2):
        wait_until(
            lambda sessions=sessions: (
                lab.log("learner").count("policies go to the evaluator") == sessions
            )
        )
        lab.kill("evaluator")
        restart(lab, "evaluator", "evaluator")
    assert granted.over.wait(150)
    assert lab.log("learner").count("the evaluator is lost") >= 2
    assert all(len(member.candidate.returns) > 0 for member in granted.completed.train.members)


def test_training_goes_on_while_a_commit_finds_no_orchestrator(lab, train_work):
    def refuse() -> None:
        raise Unavailable("the orchestrator is away")

    lab.start_learner()
    work = train_work(seconds=300)
    work.checkpoint_interval.FromMilliseconds(300)
    granted = lab.orchestrator.offer(train=work, term_s=3.0)
    wait_until(lambda: granted.commits)
    lab.orchestrator.on_commit = refuse
    known = len(granted.commits) + 1  # one may be on its way
    wait_until(lambda: len(granted.commits) > known)
    for _ in range(2):  # what had been reported before is not progress
        before = progress(granted)
        wait_until(lambda before=before: progress(granted) > before)
    refused = len(granted.commits)
    lab.orchestrator.on_commit = lambda: None
    wait_until(lambda: len(granted.commits) > refused + 1)
    assert granted.commits[refused] == granted.commits[known], (
        "what was refused comes again before anything else"
    )


def test_a_learner_frozen_past_its_term_can_write_nothing_and_leases_again(lab, train_work):
    """SIGSTOP in the middle of training, with checkpoints and evaluations as often as they can
    be."""
    lab.start_learner()
    work = train_work(members=2, envs=8, seconds=300)
    work.checkpoint_interval.FromMilliseconds(1)
    granted = lab.orchestrator.offer(train=work, term_s=5.0)
    wait_until(lambda: len(granted.commits) >= 2)
    lab.kill("learner", signal.SIGSTOP)
    wait_until(lambda: time.monotonic() > granted.deadline + 1.0)
    store = open_store(lab.store)
    objects = {info.key for info in store.list()}
    manifests = {key for key in objects if key.endswith("manifest.json")}
    counts = len(granted.commits), len(granted.renewals), len(granted.evaluations)
    after = lab.orchestrator.offer(train=train_work(steps=128))
    lab.kill("learner", signal.SIGCONT)
    assert after.over.wait(60)
    assert after.completed is not None
    assert (len(granted.commits), len(granted.renewals), len(granted.evaluations)) == counts
    assert granted.completed is None
    assert granted.released is None
    fence = granted.lease.fence
    late = {
        info.key for info in store.list() if info.key.split("/")[-2].endswith(f"-{fence}")
    } - objects
    # A write that was under way when the process was stopped may end; a checkpoint is none without
    # its manifest.
    assert not {key for key in late if key.endswith("manifest.json")} - manifests
    assert len(late) <= 8
    assert "abandoned" in lab.log("learner")


@pytest.mark.thorough
def test_a_learner_frozen_at_the_very_end_cannot_complete(lab, train_work):
    lab.start_learner()
    completing = threading.Event()
    frozen = threading.Event()

    def freeze() -> None:
        if not frozen.is_set():
            lab.kill("learner", signal.SIGSTOP)
            frozen.set()
            wait_until(lambda: time.monotonic() > granted.deadline)
            completing.set()

    lab.orchestrator.on_complete = freeze
    granted = lab.orchestrator.offer(train=train_work(steps=256), term_s=2.0)
    assert completing.wait(90)
    lab.kill("learner", signal.SIGCONT)
    after = lab.orchestrator.offer(train=train_work(steps=128))
    assert after.over.wait(60)
    assert granted.completed is None
    assert not granted.commits
    assert "abandoned" in lab.log("learner")


@pytest.mark.parametrize("layout", ["fused", "split"])
def test_sigterm_commits_releases_and_ends(lab, train_work, layout):
    process = lab.start_learner() if layout == "fused" else lab.start_split()
    granted = lab.orchestrator.offer(train=train_work(members=8, envs=32, seconds=300), term_s=5.0)
    wait_until(lambda: progress(granted) > 0)
    lab.kill("learner", signal.SIGTERM)
    assert process.wait(60) == 0
    assert granted.released.reason.reason == "DRAINING"
    assert len(granted.commits) == 1
    assert len(granted.commits[0].members) == 8
    for member in granted.commits[0].members:
        assert member.progress.env_steps > 0
        reference = member.checkpoint
        assert load_checkpoint(open_store(lab.store), reference.prefix, reference.manifest_sha256)


def test_sigterm_while_idle_ends_it(lab):
    process = lab.start_learner()
    wait_until(lambda: bool(lab.orchestrator.requests))
    lab.kill("learner", signal.SIGTERM)
    assert process.wait(60) == 0


def test_sigterm_while_a_worker_is_awaited_ends_the_wait(lab, train_work):
    process = lab.start_split(peer_patience="600")
    granted = lab.orchestrator.offer(train=train_work(seconds=300), term_s=5.0)
    wait_until(lambda: progress(granted) > 0)
    lab.kill("worker0", signal.SIGSTOP)
    time.sleep(1.0)
    lab.kill("learner", signal.SIGTERM)
    assert process.wait(60) == 0
    assert granted.commits


def test_an_orchestrator_that_is_away_for_a_while_loses_nothing(lab, train_work):
    lab.start_learner()
    work = train_work(seconds=300)
    work.checkpoint_interval.FromMilliseconds(300)
    granted = lab.orchestrator.offer(train=work, term_s=6.0)
    wait_until(lambda: len(granted.commits) >= 1)
    lab.stop_orchestrator()
    commits = len(granted.commits)
    wait_until(lambda: "no answer to a lease renewal" in lab.log("learner"))
    lab.start_orchestrator()
    granted.deadline = time.monotonic() + 6.0  # a restart gives every lease one full term
    wait_until(lambda: len(granted.commits) > commits)
    granted.action = pod_service_pb2.LEASE_ACTION_FINISH
    assert granted.over.wait(60)
    assert granted.completed is not None
    steps = [commit.members[0].progress.env_steps for commit in granted.commits]
    assert steps == sorted(steps)
