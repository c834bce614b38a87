"""A split pod whose workers are killed again and again, for minutes: `PODRACER_SOAK_MINUTES`, by
default two."""

from __future__ import annotations

import os
import random
import statistics
import time
from typing import Any

import psutil
import pytest

from podracer.learner.v1 import learner_service_pb2, learner_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.checkpoint import load_checkpoint
from podracer_platform.storage import open_store

MINUTES = float(os.environ.get("PODRACER_SOAK_MINUTES", "2"))
WORKERS, ENVS, HORIZON = 3, 48, 32
KILL_EVERY_S = 20.0
WARM_UP_S = 30.0
RECOVERY_S = 5.0
LOOK_S = 0.25
RECOVERED = 0.8
"""Of the median pace: what counts as recovered."""


class Watch:
    """The learner's environment steps and memory over time."""

    def __init__(self, lab: Any) -> None:
        self._stub = learner_service_pb2_grpc.LearnerServiceStub(lab.channel("learner"))
        self._learner = psutil.Process(lab.processes["learner"].pid)
        self.looks: list[tuple[float, int, int]] = []

    def until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            status = self._stub.GetStatus(learner_service_pb2.GetStatusRequest())
            memory = self._learner.memory_full_info()
            self.looks.append((time.monotonic(), status.env_steps, memory.uss))
            time.sleep(LOOK_S)

    def paces(self) -> list[tuple[float, float]]:
        """Time and steps/s over the second before it."""
        behind = int(1.0 / LOOK_S)
        pairs = zip(self.looks[behind:], self.looks[:-behind], strict=True)
        return [(now[0], (now[1] - then[1]) / (now[0] - then[0])) for now, then in pairs]


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 300)
def test_workers_are_killed_for_minutes_and_nothing_is_lost_or_leaks(lab, train_work):
    chosen = random.Random(0)
    lab.start_split(workers=WORKERS)
    work = train_work(
        envs=ENVS,
        seconds=60 * MINUTES + 600,
        hyperparameters={"normalize_observations": True, "horizon": HORIZON, "minibatch_size": 512},
    )
    work.checkpoint_interval.FromSeconds(10)
    granted = lab.orchestrator.offer(train=work, term_s=10.0)
    watch = Watch(lab)
    began = time.monotonic()
    watch.until(began + WARM_UP_S)
    kills = []
    while time.monotonic() < began + WARM_UP_S + 60 * MINUTES:
        name = f"worker{chosen.randrange(WORKERS)}"
        lab.kill(name)
        kills.append(time.monotonic())
        lab.processes[name].wait(60)
        lab.processes[name].stdout.close()
        lab.start("worker", name)
        watch.until(kills[-1] + KILL_EVERY_S)
    granted.action = pod_service_pb2.LEASE_ACTION_FINISH
    assert granted.over.wait(60.0)
    assert granted.completed is not None, granted.released

    for member in granted.completed.train.members:
        reference = member.final.checkpoint
        groups = load_checkpoint(
            open_store(lab.store), reference.prefix, reference.manifest_sha256
        ).groups
        assert (
            member.final.progress.env_steps
            == reference.env_steps
            == groups["random"]["transition_count"]
        )
    committed = [commit.members[0].progress.env_steps for commit in granted.commits]
    assert committed == sorted(set(committed))

    sizes = [size for at, _, size in watch.looks if at > began + WARM_UP_S]
    early, late = (
        statistics.median(part) for part in (sizes[: len(sizes) // 4], sizes[-len(sizes) // 4 :])
    )
    paces = watch.paces()
    usual = statistics.median(pace for _, pace in paces)
    recovered = [
        max(
            (pace for at, pace in paces if RECOVERY_S - 1 < at - killed <= RECOVERY_S + 1),
            default=0.0,
        )
        / usual
        for killed in kills
    ]
    print(
        f"\n{len(kills)} kills, {committed[-1]:,} steps, {usual:,.0f} steps/s as a rule; "
        f"{RECOVERY_S:g} s after a kill {statistics.median(recovered):.0%} of that (least "
        f"{min(recovered):.0%}); {early / 1e6:.1f} MB at first, {late / 1e6:.1f} MB at last"
    )
    assert late == pytest.approx(early, rel=0.05), "the learner's memory is not flat"
    # Of single kills other work of the machine would decide.
    assert statistics.median(recovered) >= RECOVERED, (
        "workers that come back do not bring the pace back"
    )
    assert not list(lab.shm.glob("podracer-*")), "segments are left"
