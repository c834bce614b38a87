"""Podracer: learners under leases, the tournament's own decisions, and `podracer run` with processes killed."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from podracer.common.v1.agent_pb2 import INITIALIZATION_KIND_COPY, CheckpointReference
from podracer.orchestrator.v1.pod_service_pb2 import TrainWork
from podracer_core.attachments.cache import FileCache
from podracer_core.catalogue.messages import hyperparameter_to_message
from podracer_core.storage import open_store
from podracer_leaderboard.rules import Rules
from podracer_leaderboard.tournament import Tournament
from podracer_learner.config import LearnerConfig
from podracer_learner.round.initial_agents import ReplayCache
from podracer_learner.round.setup import set_up_round
from podracer_learner.user_files import UserFiles
from support.endless_job import end_running, rows, wait_for_rounds, write_job
from support.evolution import Arena
from support.processes import wait_until
from tests.conformance.learners import Passage, Snapshot
from tests.e2e.conftest import commands_in
from tests.integration.pod.conftest import make_train_work, new_lab
from tests.integration.pod.test_exact_resume import ENVS, finished, killed_and_resumed, load, work_of

HORIZON = 16
UPDATE = ENVS * HORIZON
"""Environment steps of an update, which is one step of Adam."""

HYPERPARAMETERS = {
    "hidden_sizes": (16, 16), "horizon": HORIZON, "minibatch_size": UPDATE, "epochs": 1,
    "normalize_values": False,  # else weights of the critic move beside Adam's step
}  # fmt: skip
RATES = {"donor": 1e-3, "exploit": 1.2e-3, "restore": 1.5e-3, "resume": 1.8e-3, "move": 2.1e-3}


class System:
    """A donor and its child, agents of PPO in rounds of one update each."""

    modes = ("max",)

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._held = folder, ExitStack()
        self._lab = self._held.enter_context(new_lab())

    def close(self) -> None:
        self._held.close()

    def passages(self) -> dict[str, Passage]:
        line = [self._snapshot(reference) for reference in self._line]
        occasions = list(RATES.items())[1:]
        return {
            occasion: Passage(before, after, rate, UPDATE)
            for (occasion, rate), before, after in zip(occasions, line, line[1:], strict=True)
        }

    def exploited(self) -> tuple[Snapshot, Snapshot]:
        """The child is as a learner has it when the round is set up."""
        donor, store = self._line[0], open_store(self._lab.store)
        nowhere = {"orchestrator": "unix:///nowhere", "pod": "projects/p/pods/c", "tokens": self._folder}
        config = LearnerConfig(**nowhere, store=store.url, device="cpu")  # type: ignore[arg-type]
        files = UserFiles(store, FileCache(self._folder / "cache", 1 << 20), lambda: None)
        setup = set_up_round(_child_of(donor), config, None, files, ReplayCache())  # type: ignore[arg-type]
        self._held.callback(setup.close)
        return self._snapshot(donor), _snapshot(setup.algorithm.member_state(0), donor.env_steps)

    def selection(self, mode: str) -> tuple[list[float], list[float], list[float]]:
        """A tournament of eight, where an agent's score is its learning rate."""
        arena = Arena(Tournament, Rules(population=8, leaderboard_size=1, exploration=0.0, selection="truncation"))
        arena.train(_rate_of, rounds=1)
        everyone = [_rate_of(agent) for agent in arena.alive]
        children = [new for new in arena.propose().created if new.replaced is not None]
        copied = [_rate_of(parent) for new in children for parent in new.parents]
        return copied, [_rate_of(new.replaced) for new in children], everyone

    def resumed(self) -> tuple[list[Snapshot], list[Snapshot]]:
        """The learner is killed at a commit in the middle of a round."""
        with new_lab() as lab:
            lab.start_learner()
            resumed = killed_and_resumed(lab, make_train_work, "ppo", 30 * UPDATE, "fused")
            whole = finished(lab.orchestrator.offer(train=work_of(make_train_work, "ppo", 30 * UPDATE)))
            found = [[_snapshot(load(lab, each).groups, each.env_steps) for each in run] for run in (whole, resumed)]
        return found[0], found[1]

    def agents_around_a_kill(self) -> tuple[set[str], set[str]]:
        """A worker, then the learner, of the only pod of a job that `podracer run` runs."""
        folder = self._folder
        job = write_job(folder, "killed", 2, members=2, layout="split")
        job.write_text(job.read_text().replace("population: 4", "population: 2"))  # so that none gives way
        newest = "SELECT agent, max(env_steps) FROM checkpoints GROUP BY agent"
        with commands_in(folder) as start:
            command = start("run", job, "--json")
            wait_until((folder / "runs" / "connection.json").exists, 120, "the services")
            wait_for_rounds(folder, 1, "the first round")
            before = dict(rows(folder, newest))
            for role in ("worker", "learner"):
                (victim,) = wait_until(lambda: command.services(f"podracer_{role}"), 60, role)  # noqa: B023
                victim.send_signal(signal.SIGKILL)
                wait_for_rounds(folder, 1, f"a round after the {role} was killed")
            end_running(folder, 4)
            assert command.wait(120) == 0, command.stderr
        after = dict(rows(folder, newest))
        return set(before), {agent for agent in after if after[agent] > before.get(agent, 0)}

    @cached_property
    def _line(self) -> list[CheckpointReference]:
        """The donor's checkpoint, and the child's after each occasion."""
        lab = self._lab
        lab.start_learner()
        line = [self._train(_work(4 * UPDATE, "donor"))]
        line.append(self._train(_child_of(line[-1])))
        line.append(self._train(_work(UPDATE, "restore", line[-1])))
        self._kill_learner()
        lab.start_learner()
        line.append(self._train(_work(UPDATE, "resume", line[-1])))
        self._kill_learner()
        orchestrator = lab.addresses["orchestrator"]
        lab.start("learner", "other", orchestrator=orchestrator, pod="projects/p/pods/b", layout="fused")
        return [*line, self._train(_work(UPDATE, "move", line[-1]))]

    def _kill_learner(self) -> None:
        self._lab.kill("learner")
        self._lab.processes["learner"].wait(60)

    def _train(self, work: TrainWork) -> Any:
        return finished(self._lab.orchestrator.offer(train=work))[0]

    def _snapshot(self, reference: CheckpointReference) -> Snapshot:
        return _snapshot(load(self._lab, reference).groups, reference.env_steps)


def _work(steps: int, occasion: str, resume: CheckpointReference | None = None) -> TrainWork:
    """One agent for so many environment steps, on from a checkpoint or from nothing."""
    work = make_train_work("CartPole-v1", 1, ENVS, steps=steps, deterministic=True)
    (agent,) = work.cohort.members
    for name, value in (HYPERPARAMETERS | {"learning_rate": RATES[occasion]}).items():
        agent.hyperparameters[name].CopyFrom(hyperparameter_to_message(value))
    if resume is not None:
        agent.initialization.Clear()
        agent.resume.CopyFrom(resume)
    return work


def _child_of(donor: CheckpointReference) -> TrainWork:
    work = _work(UPDATE, "exploit")
    (child,) = work.cohort.members
    parent, child.name, child.seed = child.name, f"{child.name}-child", child.seed + 1
    child.initialization.kind = INITIALIZATION_KIND_COPY
    child.initialization.parents.add(agent=parent, checkpoint=donor)
    return work


def _snapshot(state: Mapping[str, Mapping[str, Any]], counter: int) -> Snapshot:
    weights = [state[group][name] for group in ("actor", "critic") for name in sorted(state[group]) if "layers" in name]
    moments = [state["optimizer"][name] for name in ("first_moment", "second_moment")]
    flat = torch.cat([tensor.flatten() for tensor in weights])
    return Snapshot(flat, *moments, int(state["optimizer"]["step_count"]), counter, epsilon=1e-5)


def _rate_of(agent: Any) -> float:
    """Of an agent as the leaderboard has it."""
    return float(agent.hyperparameters["learning_rate"])
