"""A real split pod with several workers, which are killed, frozen, slowed down and started in the
middle of a round."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from podracer.learner.v1 import learner_service_pb2, learner_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.checkpoint import load_checkpoint
from podracer_platform.storage import open_store
from support.processes import wait_until

pytestmark = pytest.mark.processes

MakeWork = Callable[..., pod_service_pb2.TrainWork]

ENVS, HORIZON = 16, 16


class Round:
    """A round that goes on until it is told to finish."""

    def __init__(self, lab: Any, work: pod_service_pb2.TrainWork) -> None:
        self.lab = lab
        self.granted = lab.orchestrator.offer(train=work, term_s=5.0)
        self._stub = learner_service_pb2_grpc.LearnerServiceStub(lab.channel("learner"))

    @property
    def status(self) -> learner_service_pb2.GetStatusResponse:
        return self._stub.GetStatus(learner_service_pb2.GetStatusRequest())

    def figure(self, name: str) -> float:
        """As the renewals tell it, of the first member."""
        renewals = [one for one in self.granted.renewals if one.members]
        return renewals[-1].members[0].metrics.get(name, 0.0) if renewals else 0.0

    def trains_on(self, updates: int = 5) -> None:
        before = self.status.updates
        wait_until(
            lambda: self.status.updates >= before + updates,
            what=f"it hangs: {self.lab.log('learner')[-3000:]}",
        )

    def wait_for(self, name: str, value: float, since: int = 0) -> None:
        """Until a renewal tells it, the newest or any one after the first `since`."""
        message = f"{name} has never been {value}"

        def told() -> bool:
            renewals = self.granted.renewals[since:] if since else []
            figures = [one.members[0].metrics.get(name) for one in renewals if one.members]
            return value in (figures or [self.figure(name)])

        wait_until(told, what=f"{message}: {self.lab.log('learner')[-3000:]}")

    def end(self) -> None:
        """What was counted is what the agents have learned from, in whole environments."""
        self.granted.action = pod_service_pb2.LEASE_ACTION_FINISH
        assert self.granted.over.wait(60.0)
        assert self.granted.completed is not None, self.granted.released
        for member in self.granted.completed.train.members:
            reference = member.final.checkpoint
            groups = load_checkpoint(
                open_store(self.lab.store), reference.prefix, reference.manifest_sha256
            ).groups
            env_steps = member.final.progress.env_steps
            assert env_steps == reference.env_steps == groups["random"]["transition_count"]
            assert env_steps == groups["normalizer"]["observations.count"]
            assert env_steps % HORIZON == 0
            assert env_steps <= ENVS * groups["random"]["step_count"]
        steps = [
            renewal.members[0].env_steps for renewal in self.granted.renewals if renewal.members
        ]
        assert steps == sorted(steps)


@pytest.fixture
def work(train_work: MakeWork) -> pod_service_pb2.TrainWork:
    return train_work(envs=ENVS, seconds=300.0, hyperparameters={"normalize_observations": True})


def test_workers_leave_and_come_in_the_middle_of_a_round(lab, work):
    lab.start_split(workers=2)
    training = Round(lab, work)
    training.wait_for("live_environments", 2 * ENVS)
    lab.kill("worker0")
    lab.processes["worker0"].wait(60)
    training.trains_on()
    wait_until(lambda: training.status.worker_count == 1, what="a dead worker is counted")
    training.wait_for("live_environments", 2 * ENVS)  # the other one has taken over its part
    lab.start("worker", "worker0")
    training.wait_for("workers", 2)
    training.wait_for("live_environments", 2 * ENVS)
    for name in ("worker0", "worker1"):
        lab.kill(name)
        lab.processes[name].wait(60)
    for name in ("worker1", "worker0"):
        lab.start("worker", name)
    training.trains_on()
    training.wait_for("workers", 2)
    training.end()


def test_a_frozen_worker_and_one_that_is_ten_times_slower_cost_their_share(lab, work):
    lab.start_split(workers=2, collect_ahead="1")
    training = Round(lab, work)
    training.wait_for("live_environments", 2 * ENVS)
    before = len(training.granted.renewals)
    lab.kill("worker1", signal.SIGSTOP)
    training.trains_on(10)
    # Renewals tell it a little later, and after some time the other worker takes the frozen one's
    # environments over.
    training.wait_for("live_environments", ENVS, since=before)
    slow = threading.Event()

    def work_a_tenth_of_the_time() -> None:
        while not slow.wait(0.09):
            lab.kill("worker1", signal.SIGCONT)
            time.sleep(0.01)
            lab.kill("worker1", signal.SIGSTOP)
        lab.kill("worker1", signal.SIGCONT)

    thread = threading.Thread(target=work_a_tenth_of_the_time)
    thread.start()
    try:
        training.trains_on(20)
    finally:
        slow.set()
        thread.join()
    training.wait_for("live_environments", 2 * ENVS)
    assert training.figure("staleness_greatest") <= 2
    training.end()
