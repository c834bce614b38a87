"""Podracer: learners under leases, the tournament's own decisions, and `podracer run` with
processes killed."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad

from podracer.common.v1.agent_pb2 import INITIALIZATION_KIND_COPY, CheckpointReference
from podracer.orchestrator.v1.pod_service_pb2 import TrainWork
from podracer_core.evolution.rules import Rules
from podracer_core.evolution.tournament import Tournament
from support.endless_job import end_running, rows, wait_for_rounds, write_job
from support.evolution import Arena
from support.processes import wait_until
from tests.conformance.learners import Passage, Snapshot
from tests.e2e.conftest import commands_in
from tests.integration.pod.conftest import make_train_work, new_lab
from tests.integration.pod.test_exact_resume import (
    ENVS,
    finished,
    killed_and_resumed,
    load,
    work_of,
)

HORIZON = 16
UPDATE = ENVS * HORIZON
"""Environment steps of an update, which is one step of Adam."""

HYPERPARAMETERS = {
    "hidden_sizes": (16, 16), "horizon": HORIZON, "minibatch_size": UPDATE, "epochs": 1,
    "normalize_values": False,  # else weights of the critic move beside Adam's step
}  # fmt: skip
RATES = {"exploit": 1.2e-3, "restore": 1.5e-3, "resume": 1.8e-3, "move": 2.1e-3}
RUN = 30 * UPDATE
"""Of the run that is interrupted."""


class System:
    """A donor and its child, agents of PPO in rounds of one update each."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._held = folder, ExitStack()
        self._lab = self._held.enter_context(new_lab())

    def close(self) -> None:
        self._held.close()

    def passages(self) -> dict[str, Passage]:
        line = [snapshot for _, snapshot in self._line]
        steps = zip(RATES.items(), line, line[1:], strict=False)
        return {
            occasion: Passage(before, after, rate, UPDATE)
            for (occasion, rate), before, after in steps
        }

    def donors(self) -> tuple[Snapshot, Snapshot]:
        donor, before = self._line[0]
        return before, _stored(self._lab, donor)

    def selection(self) -> tuple[list[float], list[float], list[float]]:
        """A tournament of eight, where an agent's score is its learning rate."""
        arena = Arena(
            Tournament,
            Rules(population=8, leaderboard_size=1, exploration=0.0, selection="truncation"),
        )
        arena.train(_rate_of, rounds=1)
        everyone = [_rate_of(agent) for agent in arena.alive]
        children = [new for new in arena.propose().created if new.replaced is not None]
        copied = [_rate_of(parent) for new in children for parent in new.parents]
        return copied, [_rate_of(new.replaced) for new in children], everyone

    def resumed(self) -> tuple[list[Snapshot], list[Snapshot]]:
        """The learner is killed at a commit in the middle of a round."""
        with new_lab() as lab:
            lab.start_learner()
            resumed = killed_and_resumed(lab, make_train_work, "ppo", RUN, "fused")
            whole = finished(lab.orchestrator.offer(train=work_of(make_train_work, "ppo", RUN)))
            return [_stored(lab, each) for each in whole], [_stored(lab, each) for each in resumed]

    def agents_around_a_kill(self) -> tuple[set[str], set[str]]:
        """The worker and the learner of the only pod of a job that `podracer run` runs."""
        job = write_job(self._folder, "killed", 2, members=2, layout="split")
        # so that none gives way
        job.write_text(job.read_text().replace("population: 4", "population: 2"))
        newest = "SELECT agent, max(env_steps) FROM checkpoints GROUP BY agent"
        with commands_in(self._folder) as start:
            command = start("run", job, "--json")
            wait_until((self._folder / "runs" / "connection.json").exists, 120, "the services")
            for role in ("worker", "learner"):
                wait_for_rounds(self._folder, 1, f"a round before the {role} is killed")
                before = dict(rows(self._folder, newest))
                command.services(f"podracer_{role}")[0].send_signal(signal.SIGKILL)
            end_running(self._folder, 8)
            assert command.wait(120) == 0, command.stderr
        after = dict(rows(self._folder, newest))
        return set(before), {agent for agent in after if after[agent] > before.get(agent, 0)}

    @cached_property
    def _line(self) -> list[tuple[CheckpointReference, Snapshot]]:
        """The donor's checkpoint, and the child's after each occasion, with what they have."""
        self._start_learner("a")
        line = [self._train(_work(4 * UPDATE, 1e-3))]
        line.append(self._train(_child_of(line[0][0])))
        line.append(self._train(_work(UPDATE, RATES["restore"], line[-1][0])))
        for occasion, pod in (("resume", "a"), ("move", "b")):
            self._lab.kill("a")
            self._lab.processes["a"].wait(60)
            self._start_learner(pod)
            line.append(self._train(_work(UPDATE, RATES[occasion], line[-1][0])))
        return line

    def _start_learner(self, pod: str) -> None:
        orchestrator = self._lab.addresses["orchestrator"]
        self._lab.start("learner", pod, orchestrator=orchestrator, pod=f"projects/p/pods/{pod}")

    def _train(self, work: TrainWork) -> tuple[CheckpointReference, Snapshot]:
        (reference,) = finished(self._lab.orchestrator.offer(train=work))
        return reference, _stored(self._lab, reference)


def _work(steps: int, rate: float, resume: CheckpointReference | None = None) -> TrainWork:
    """One agent for so many environment steps, on from a checkpoint or from nothing."""
    own = HYPERPARAMETERS | {"learning_rate": rate}
    work = make_train_work(
        "CartPole-v1", 1, ENVS, steps=steps, deterministic=True, hyperparameters=own
    )
    if resume is not None:
        work.cohort.members[0].initialization.Clear()
        work.cohort.members[0].resume.CopyFrom(resume)
    return work


def _child_of(donor: CheckpointReference) -> TrainWork:
    work = _work(UPDATE, RATES["exploit"])
    (child,) = work.cohort.members
    parent, child.name, child.seed = child.name, f"{child.name}-child", child.seed + 1
    child.initialization.kind = INITIALIZATION_KIND_COPY
    child.initialization.parents.add(agent=parent, checkpoint=donor)
    return work


def _stored(lab: Any, reference: CheckpointReference) -> Snapshot:
    return _snapshot(load(lab, reference).groups, reference.env_steps)


def _snapshot(state: Mapping[str, Mapping[str, Any]], counter: int) -> Snapshot:
    """Weights in the moments' order, where the critic's last layer is as wide as the actor's."""
    names = [f"layers.{layer}.{part}" for layer in range(3) for part in ("weight", "bias")]
    nets = [[state[group][name] for name in names] for group in ("actor", "critic")]
    widths = [each.shape[1] for each in nets[0]]
    rows = [
        pad(each, (0, width - each.shape[1]))
        for net in nets
        for each, width in zip(net, widths, strict=True)
    ]
    moments = [state["optimizer"][name] for name in ("first_moment", "second_moment")]
    weights = torch.cat([each.flatten() for each in rows])
    return Snapshot(weights, *moments, int(state["optimizer"]["step_count"]), counter, epsilon=1e-5)


def _rate_of(agent: Any) -> float:
    """Of an agent as the leaderboard has it."""
    return float(agent.hyperparameters["learning_rate"])
