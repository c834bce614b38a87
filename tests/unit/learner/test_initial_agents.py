"""Where the learners of one agent begin: with the same weights, in environments of their own."""

from __future__ import annotations

import pytest
import torch

from podracer.common.v1 import agent_pb2
from podracer_core.algorithms import PPO, CohortConfig, MemberConfig
from podracer_core.catalogue import BUILT_IN_ENVIRONMENTS, EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import CartPole
from podracer_core.storage import FolderStore
from podracer_core.training import member_environment_states
from podracer_learner.checkpoints import CheckpointWriter, MemberWrite
from podracer_learner.round import InitialAgents, ReplayCache, load_initial_agents

NAME = "projects/p/jobs/j/agents/a"
COHORT = CohortConfig(
    "ppo", (MemberConfig(NAME, 1),), {"hidden_sizes": (8,), "horizon": 4, "minibatch_size": 8}
)
ENVS = 3


def fresh() -> agent_pb2.AgentSpec:
    kind = agent_pb2.INITIALIZATION_KIND_FRESH
    return agent_pb2.AgentSpec(name=NAME, initialization=agent_pb2.Initialization(kind=kind))


def begin(
    agent: agent_pb2.AgentSpec, store: FolderStore, rank: int
) -> tuple[PPO, InitialAgents, Collector]:
    environment = CartPole(ENVS)
    algorithm = PPO(COHORT, environment.observation_space, environment.action_space)
    starts = load_initial_agents(algorithm, [agent], store, ReplayCache(), rank)
    collector = Collector(
        environment,
        algorithm.actor,
        torch.tensor([1]),
        first_step=starts.step_count,
        first_environment=starts.first_environment,
        session=starts.step_count,
    )
    return algorithm, starts, collector


def checkpoint(store: FolderStore) -> agent_pb2.CheckpointReference:
    """Of an agent that has trained a little."""
    algorithm, _, collector = begin(fresh(), store, 0)
    algorithm.update(collector.collect(4))
    info = BUILT_IN_ENVIRONMENTS["CartPole-v1"]
    assert info.observation_space is not None
    assert info.action_space is not None
    spaces = (info.observation_space, info.action_space)
    writer = CheckpointWriter(
        store, [fresh()], COHORT, "uid", 1, EnvironmentSpec(id="CartPole-v1"), spaces
    )
    (state,) = member_environment_states(collector)
    (reference,) = writer.write([MemberWrite(0, 12, algorithm.member_state(0), state)])
    return reference


@pytest.mark.parametrize("resumed", [False, True])
def test_ranks_have_the_same_weights_and_other_episodes_and_noise(tmp_path, resumed):
    store = FolderStore(tmp_path)
    agent = fresh()
    if resumed:
        agent.resume.CopyFrom(checkpoint(store))
    (lead, at_lead, leads), (follower, at_follower, followers) = (
        begin(agent, store, rank) for rank in (0, 1)
    )
    assert (at_lead.environments[0] is not None) == resumed
    assert at_follower.environments == [None]
    assert at_lead.first_environment == 0
    assert at_follower.first_environment > 100_000
    first, second = lead.member_state(0), follower.member_state(0)
    for group in ("actor", "critic", "optimizer"):
        assert all(
            torch.equal(tensor, second[group][name]) for name, tensor in first[group].items()
        )
    one, other = leads.collect(4), followers.collect(4)
    assert not torch.equal(one.observation[0], other.observation[0])
    assert torch.equal(one.first_step, other.first_step)
