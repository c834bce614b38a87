"""Transitions go on with their agent: in memory from lease to lease, and in checkpoints that hold
them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from podracer.common.v1 import agent_pb2
from podracer_core.algorithms import DQN, CohortConfig, MemberConfig
from podracer_core.catalogue import BUILT_IN_ENVIRONMENTS, EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import CartPole
from podracer_core.storage import FolderStore
from podracer_core.training import MemberOutcome, member_environment_states, resume_environments
from podracer_learner.checkpoints import CheckpointWriter, MemberWrite
from podracer_learner.round import (
    InitialAgents,
    ReplayCache,
    StoredReplays,
    load_initial_agents,
)

ENVS = 3
NAMES = ["projects/p/jobs/j/agents/a1", "projects/p/jobs/j/agents/a2"]
COHORT = CohortConfig(
    "dqn",
    (MemberConfig(NAMES[0], 1), MemberConfig(NAMES[1], 2)),
    {
        "hidden_sizes": (8, 9),
        "batch_size": 7,
        "horizon": 2,
        "learning_starts": 12,
        "prioritized": True,
        "n_step": 2,
    },
)


class Run:
    """A cohort that trains, perhaps from somewhere on."""

    def __init__(
        self, agents: list[agent_pb2.AgentSpec], store: FolderStore, cache: ReplayCache
    ) -> None:
        torch.set_num_threads(1)
        environment = CartPole(len(NAMES) * ENVS)
        self.algorithm = DQN(COHORT, environment.observation_space, environment.action_space)
        starts: InitialAgents = load_initial_agents(self.algorithm, agents, store, cache)
        seeds = torch.tensor([member.seed for member in COHORT.members])
        self.collector = Collector(
            environment,
            self.algorithm.actor,
            seeds,
            first_step=starts.step_count,
            session=starts.step_count,
        )
        resume_environments(self.collector, starts.environments)

    def train(self, updates: int) -> Run:
        for _ in range(updates):
            self.algorithm.update(self.collector.collect(2, policy_version=self.algorithm.version))
        return self

    def weights(self) -> torch.Tensor:
        layers = (
            tensor
            for name, tensor in self.algorithm.actor_state().items()
            if name.startswith("layers")
        )
        return torch.cat([tensor.flatten() for tensor in layers])

    def write(self, store: FolderStore, *, replay: bool) -> list[agent_pb2.CheckpointReference]:
        info = BUILT_IN_ENVIRONMENTS["CartPole-v1"]
        assert info.observation_space is not None
        assert info.action_space is not None
        spaces = (info.observation_space, info.action_space)
        writer = CheckpointWriter(
            store, fresh(), COHORT, "uid", 1, EnvironmentSpec(id="CartPole-v1"), spaces
        )
        return writer.write(
            [
                MemberWrite(
                    member,
                    60,
                    self.algorithm.member_state(member),
                    state,
                    replay=self.algorithm.replay_state(member) if replay else {},
                )
                for member, state in enumerate(member_environment_states(self.collector))
            ]
        )


def fresh() -> list[agent_pb2.AgentSpec]:
    kind = agent_pb2.INITIALIZATION_KIND_FRESH
    return [
        agent_pb2.AgentSpec(name=name, initialization=agent_pb2.Initialization(kind=kind))
        for name in NAMES
    ]


def resumed(references: list[agent_pb2.CheckpointReference]) -> list[agent_pb2.AgentSpec]:
    return [
        agent_pb2.AgentSpec(name=name, resume=one)
        for name, one in zip(NAMES, references, strict=True)
    ]


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def outcome(run: Run, member: int) -> MemberOutcome:
    return MemberOutcome(member, 60, run.algorithm.member_state(member), None, None, failed=False)


@pytest.mark.parametrize("where", ["checkpoint", "memory"])
def test_an_interrupted_run_is_the_uninterrupted_one(store, where):
    whole = Run(fresh(), store, ReplayCache()).train(10)
    references, cache = whole.write(store, replay=where == "checkpoint"), ReplayCache()
    if where == "memory":
        cache.keep(whole.algorithm, fresh(), [outcome(whole, member) for member in range(2)])
    second = Run(resumed(references), store, cache)
    assert torch.equal(second.weights(), whole.weights())
    assert torch.equal(second.train(7).weights(), whole.train(7).weights())


def test_without_its_transitions_an_agent_goes_on_and_fills_up_again(store):
    references = Run(fresh(), store, ReplayCache()).train(10).write(store, replay=False)
    second = Run(resumed(references), store, ReplayCache())
    before = second.weights()
    second.train(1)
    assert torch.equal(second.weights(), before), "6 of 12 transitions are too few to learn from"
    assert second.algorithm.replay is not None
    assert second.algorithm.replay.size.tolist() == [2, 2]
    assert not torch.equal(second.train(3).weights(), before)


@pytest.mark.parametrize("inherit", [True, False])
def test_a_child_inherits_transitions_where_it_is_told_to(store, inherit):
    references = Run(fresh(), store, ReplayCache()).train(10).write(store, replay=True)
    agents = fresh()
    agents[1].initialization.CopyFrom(
        agent_pb2.Initialization(
            kind=agent_pb2.INITIALIZATION_KIND_COPY,
            parents=[agent_pb2.Parent(agent=NAMES[0], checkpoint=references[0])],
            inherit_replay=inherit,
        )
    )
    run = Run(agents, store, ReplayCache()).train(1)
    assert run.algorithm.replay is not None
    assert run.algorithm.replay.size.tolist() == [2, 22 if inherit else 2]


def test_a_child_takes_over_what_its_parent_has_seen_in_this_pod(store):
    parents, cache = Run(fresh(), store, ReplayCache()).train(10), ReplayCache()
    references = parents.write(store, replay=False)
    cache.keep(parents.algorithm, fresh(), [outcome(parents, member) for member in range(2)])
    agents = fresh()
    agents[0].name += "0"
    agents[0].initialization.CopyFrom(
        agent_pb2.Initialization(
            kind=agent_pb2.INITIALIZATION_KIND_COPY,
            parents=[agent_pb2.Parent(agent=NAMES[1], checkpoint=references[1])],
            inherit_replay=True,
        )
    )
    run = Run(agents, store, cache)
    seen = parents.algorithm.replay_state(1)["reward"]
    assert torch.equal(run.algorithm.replay_state(0)["reward"], seen)
    assert run.train(1).algorithm.replay_state(0)["reward"].shape[0] == seen.shape[0] + 2


@pytest.mark.parametrize(
    ("url", "asked_for", "limit", "stored"),
    [
        ("file:///a", False, 1 << 20, True),
        ("file:///a", False, 100, False),
        ("file:///a", True, 100, True),
        ("s3://a", False, 1 << 20, False),
        ("s3://a", True, 100, True),
    ],
)
def test_small_buffers_are_stored_in_folders_and_any_where_asked_for(
    store, monkeypatch, url, asked_for, limit, stored
):
    monkeypatch.setattr("podracer_learner.round.setup._SMALL_BYTES", limit)
    run = Run(fresh(), store, ReplayCache()).train(2)
    assert bool(StoredReplays(run.algorithm, url, asked_for=asked_for).of(1)) == stored


def test_the_cache_knows_an_agent_only_where_it_stood_and_forgets_when_told(store):
    run, cache = Run(fresh(), store, ReplayCache()).train(10), ReplayCache()
    cache.keep(run.algorithm, fresh(), [outcome(run, 0)])
    agent = agent_pb2.AgentSpec(name=NAMES[0])
    assert cache.find(agent) is None, "it does not go on"
    agent.resume.env_steps = 60
    assert cache.find(agent) is not None
    agent.resume.env_steps = 61
    assert cache.find(agent) is None, "it went on elsewhere meanwhile"
    agent.resume.env_steps = 60
    agent.resume.env_steps = 61
    assert cache.find(agent, follows=True) is not None
    cache.forget()
    assert cache.find(agent, follows=True) is None


def test_a_follower_keeps_what_it_has_seen_for_when_it_leads_or_follows_again(store):
    """It does not know how far its lead has trained the agents."""
    lead, follower = (Run(fresh(), store, ReplayCache()).train(updates) for updates in (10, 7))
    cache = ReplayCache()
    references = lead.write(store, replay=False)
    cache.keep_followed(follower.algorithm, fresh())
    again = Run(resumed(references), store, cache).train(1)
    assert again.algorithm.replay is not None
    assert again.algorithm.replay.size.tolist() == [2 * 8] * 2
    cache.keep_followed(follower.algorithm, fresh())
    assert cache.find(fresh()[0]) is None, "it begins anew"
