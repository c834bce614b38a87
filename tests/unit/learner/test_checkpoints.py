"""What a learner's checkpoint says of itself, and where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from podracer.common.v1 import agent_pb2
from podracer_core.algorithms import Algorithm, CohortConfig, MemberConfig, algorithm_class
from podracer_core.buffers import Replay
from podracer_core.catalogue import BUILT_IN_ENVIRONMENTS, EnvironmentSpec
from podracer_core.checkpoint import load_actor, load_checkpoint
from podracer_core.environments import make_vec_environment
from podracer_core.errors import DataCorrupted, InvalidInput
from podracer_core.evaluate import EvaluationResult
from podracer_core.storage import FolderStore
from podracer_learner.checkpoints import (
    CheckpointWriter,
    MemberWrite,
    base_env_steps,
    read_references,
    stored_transitions,
)
from support.transitions import rollouts

SPEC = EnvironmentSpec(id="CartPole-v1", max_episode_steps=100)
COHORT = CohortConfig(
    "ppo",
    (MemberConfig("a", 1, {"learning_rate": 0.01}), MemberConfig("b", 2, {"learning_rate": 0.02})),
    {"hidden_sizes": (8, 8), "horizon": 16},
)
AGENTS = [
    agent_pb2.AgentSpec(
        name="projects/p/jobs/j/agents/a1", algorithm="ppo", seed=1, env_steps=1000
    ),
    agent_pb2.AgentSpec(name="projects/p/jobs/j/agents/a2", algorithm="ppo", seed=2, env_steps=0),
]


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


@pytest.fixture
def algorithm() -> Algorithm:
    environment = make_vec_environment(SPEC, 1)
    return algorithm_class("ppo")(COHORT, environment.observation_space, environment.action_space)


@pytest.fixture
def writer(store: FolderStore) -> CheckpointWriter:
    info = BUILT_IN_ENVIRONMENTS["CartPole-v1"]
    assert info.observation_space is not None
    assert info.action_space is not None
    return CheckpointWriter(
        store, AGENTS, COHORT, "uid7", 5, SPEC, (info.observation_space, info.action_space)
    )


def test_a_checkpoint_alone_can_act_and_tells_everything(writer, store, algorithm):
    result = EvaluationResult((1.0, 2.0), (10, 20), (5, 6))
    write = MemberWrite(0, 64, algorithm.member_state(0), {"step_count": torch.tensor(4)}, result)
    (reference,) = writer.write([write])
    assert reference.prefix == "projects/p/jobs/uid7/agents/a1/checkpoints/1064-5/"
    assert (reference.env_steps, reference.fence) == (1064, 5)
    loaded = load_checkpoint(store, reference.prefix, reference.manifest_sha256)
    assert loaded.metadata["agent"] == "projects/p/jobs/j/agents/a1"
    assert loaded.metadata["hyperparameters"]["learning_rate"] == 0.01
    assert loaded.metadata["hyperparameters"]["hidden_sizes"] == [8, 8]
    assert loaded.metadata["hyperparameters"]["gamma"] == 0.99, "defaults are filled in"
    assert EnvironmentSpec(**loaded.metadata["environment"]) == SPEC
    assert loaded.metadata["evaluation"]["seeds"] == [5, 6]
    assert loaded.groups["environment"]["step_count"] == 4
    actor = load_actor(loaded)
    observation = torch.randn(1, 7, 4)
    assert torch.equal(actor.greedy(observation), algorithm.actor.member(0).greedy(observation))


def test_several_members_at_once_come_back_in_order(writer, store, algorithm):
    references = writer.write(
        [MemberWrite(member, 64, algorithm.member_state(member)) for member in (1, 0)]
    )
    assert [reference.prefix.split("/")[5] for reference in references] == ["a2", "a1"]
    loaded = read_references(store, references)
    assert [int(one.groups["random"]["seed"]) for one in loaded] == [2, 1]


def test_the_same_state_again_is_the_same_checkpoint(writer, algorithm):
    write = MemberWrite(0, 64, algorithm.member_state(0))
    first, second = writer.write([write])[0], writer.write([write])[0]
    assert first.manifest_sha256 == second.manifest_sha256


def test_a_reference_with_another_hash_is_refused(writer, store, algorithm):
    (reference,) = writer.write([MemberWrite(0, 64, algorithm.member_state(0))])
    reference.manifest_sha256 = "0" * 64
    with pytest.raises(DataCorrupted):
        read_references(store, [reference])


def test_transitions_that_have_been_committed_are_not_written_again(writer, store, algorithm):
    shape = (1, 4, 100, 40_000)
    replay = Replay(shape[3], next(rollouts(shape, 1)))

    def write(steps: int) -> agent_pb2.CheckpointReference:
        replay.add(next(rollouts(shape, 1, first=steps)))
        state = replay.member_state(0) | {
            "observation": replay.member_state(0)["observation"].repeat(1, 1, 5_000)
        }
        (reference,) = writer.write(
            [MemberWrite(0, steps, algorithm.member_state(0), replay=state)]
        )
        loaded = stored_transitions(
            load_checkpoint(store, reference.prefix, reference.manifest_sha256)
        )
        assert loaded is not None
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
        return reference

    def parts(reference: agent_pb2.CheckpointReference) -> int:
        # but for the tail
        return sum("/replay/" in info.key for info in store.list(reference.prefix)) - 1

    first = write(100)
    assert parts(first) == 4, "of 160 KB a row"
    assert parts(write(200)) == 8, "nothing counts yet"
    writer.committed([first])
    assert parts(write(300)) == 12 - 3, "all that were whole"
    second = write(400)
    writer.committed([second])
    assert parts(write(500)) == 20 - 15


def test_a_name_that_is_no_agents_is_refused(store, algorithm):
    info = BUILT_IN_ENVIRONMENTS["CartPole-v1"]
    assert info.observation_space is not None
    assert info.action_space is not None
    agents = [agent_pb2.AgentSpec(name="a1")]
    writer = CheckpointWriter(
        store, agents, COHORT, "u", 5, SPEC, (info.observation_space, info.action_space)
    )
    with pytest.raises(InvalidInput, match="a1"):
        writer.write([MemberWrite(0, 64, algorithm.member_state(0))])


@pytest.mark.parametrize("evaluator", ["", "success_rate"])
def test_a_checkpoint_tells_what_judges_it_unless_greedy_episodes_do(store, algorithm, evaluator):
    info = BUILT_IN_ENVIRONMENTS["CartPole-v1"]
    spaces = info.observation_space, info.action_space
    writer = CheckpointWriter(store, AGENTS, COHORT, "uid7", 5, SPEC, spaces, evaluator=evaluator)
    (reference,) = writer.write([MemberWrite(0, 64, algorithm.member_state(0))])
    loaded = load_checkpoint(store, reference.prefix, reference.manifest_sha256)
    assert loaded.metadata.get("evaluator", "") == evaluator


def test_steps_before_a_lease_are_those_of_the_checkpoint_it_resumes():
    agent = agent_pb2.AgentSpec(env_steps=70)
    assert base_env_steps(agent) == 70
    agent.resume.env_steps = 50
    assert base_env_steps(agent) == 50
