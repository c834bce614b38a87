"""Training 2 N steps, and N steps, kill -9, and the rest from what was committed, give the same
agents bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.catalogue import BUILT_IN_ALGORITHMS
from podracer_core.checkpoint import Checkpoint, load_checkpoint
from podracer_platform.messages import hyperparameter_to_message
from podracer_platform.storage import open_store

MakeWork = Callable[..., pod_service_pb2.TrainWork]

DISCRETE = ("dqn", "double_dqn", "dueling_dqn", "d3qn", "qr_dqn", "discrete_sac")
ON_POLICY = {
    "hidden_sizes": (16, 16),
    "horizon": 16,
    "learning_rate_schedule": "linear",
    "schedule_steps": 1e5,
}
OFF_POLICY = {
    "hidden_sizes": (16, 16), "horizon": 8, "batch_size": 32, "learning_starts": 128,
    "replay_capacity": 2048, "updates_per_step": 0.25,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"minibatch_size": 32, "epochs": 2},
    "redq": {"ensemble_size": 3, "subset_size": 2, "updates_per_step": 0.125},
}
ENVS = 8


def work_of(train_work: MakeWork, name: str, steps: int) -> pod_service_pb2.TrainWork:
    """Two members of an algorithm, in lock-step, whose checkpoints come as often as they can and
    have everything."""
    info = BUILT_IN_ALGORITHMS[name]
    discrete = name in DISCRETE or info.on_policy
    work = train_work(
        "CartPole-v1" if discrete else "Pendulum-v1", 2, ENVS, steps=steps, deterministic=True
    )
    work.keep_replay = True
    work.cohort.algorithm = name
    shared = (ON_POLICY if info.on_policy else OFF_POLICY) | OWN.get(name, {})
    known = {one.name for one in info.hyperparameters}
    for index, agent in enumerate(work.cohort.members):
        agent.algorithm = name
        agent.hyperparameters.clear()
        for key, value in (shared | {"learning_rate": 1e-3 * (1 + index)}).items():
            if key in known:
                agent.hyperparameters[key].CopyFrom(hyperparameter_to_message(value))
    return work


def finished(granted: Any) -> list[Checkpoint]:
    assert granted.over.wait(120)
    assert granted.completed is not None, granted.released
    return [member.final.checkpoint for member in granted.completed.train.members]


def load(lab: Any, reference: agent_pb2.CheckpointReference) -> Checkpoint:
    return load_checkpoint(open_store(lab.store), reference.prefix, reference.manifest_sha256)


def killed_and_resumed(
    lab: Any, train_work: MakeWork, name: str, steps: int, layout: str
) -> list[Any]:
    # it is stored, and the learner does not hear of it
    lab.orchestrator.on_commit = lambda: lab.kill("learner")
    work = work_of(train_work, name, steps)
    work.checkpoint_interval.FromMilliseconds(1)
    granted = lab.orchestrator.offer(train=work)
    lab.processes["learner"].wait(120)
    lab.orchestrator.on_commit = lambda: None
    assert granted.completed is None, "the round was over before it was interrupted"
    committed = {member.progress.agent: member.checkpoint for member in granted.commits[-1].members}
    (done,) = {checkpoint.env_steps for checkpoint in committed.values()}
    assert 0 < done < steps
    rest = work_of(train_work, name, steps - done)
    for agent in rest.cohort.members:
        agent.resume.CopyFrom(committed[agent.name])
        agent.initialization.Clear()
    after = lab.orchestrator.offer(train=rest)
    lab.start_learner(layout)
    return finished(after)


def check_exact(lab: Any, train_work: MakeWork, name: str, layout: str) -> None:
    steps = ENVS * (16 * 30 if BUILT_IN_ALGORITHMS[name].on_policy else 8 * 30)
    interrupted = killed_and_resumed(lab, train_work, name, steps, layout)
    whole = finished(lab.orchestrator.offer(train=work_of(train_work, name, steps)))
    for one, other in zip(whole, interrupted, strict=True):
        assert one.env_steps == other.env_steps == steps
        first, second = load(lab, one), load(lab, other)
        assert set(first.groups) == set(second.groups)
        assert "environment" in first.groups
        assert ("replay/0" in first.groups) != BUILT_IN_ALGORITHMS[name].on_policy
        for group, tensors in first.groups.items():
            for key, tensor in tensors.items():
                assert torch.equal(tensor, second.groups[group][key]), (group, key)


def _quick(quick: str, thorough: tuple[str, ...]) -> list[Any]:
    """Every algorithm; those that are not named here only among the slow tests."""
    rest = set(BUILT_IN_ALGORITHMS) - {quick, *thorough}
    marks = {key: [pytest.mark.thorough] for key in thorough} | {
        key: [pytest.mark.slow] for key in rest
    }
    return [pytest.param(name, marks=marks.get(name, [])) for name in BUILT_IN_ALGORITHMS]


@pytest.mark.parametrize("name", _quick("ppo", thorough=("a2c", "dqn", "sac")))
def test_fused(lab, train_work, name):
    lab.start_learner()
    check_exact(lab, train_work, name, "fused")


@pytest.mark.parametrize("name", _quick("sac", thorough=("ppo",)))
def test_split_in_lock_step(lab, train_work, name):
    lab.start_split()
    check_exact(lab, train_work, name, "split")
