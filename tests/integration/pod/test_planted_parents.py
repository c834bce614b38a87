"""A parent whose every number is marked, and the child in which they are looked for bit for bit.

`set_up_round` is what a learner does with a TRAIN lease before it takes the first step; the last
tests are a real learner's, whose child has not learned yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms import (
    Algorithm,
    MemberState,
    algorithm_class,
    perturb_actor,
)
from podracer_core.buffers import to_parts
from podracer_core.checkpoint import load_checkpoint, save_checkpoint
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment
from podracer_core.storage import ObjectStore
from podracer_learner.checkpoints import stored_transitions
from podracer_learner.config import LearnerConfig
from podracer_learner.round import ReplayCache, RoundSetup, set_up_round
from podracer_learner.user_files import UserFiles
from podracer_platform.attachments import FileCache
from podracer_platform.messages import environment_from_message, hyperparameter_to_message
from podracer_platform.storage import open_store
from podracer_platform.training_messages import cohort_from_message

MakeWork = Callable[..., pod_service_pb2.TrainWork]
Work = pod_service_pb2.TrainWork
JOB = "projects/p/jobs/j"
CHILD = 1  # the member; its neighbour is fresh
REPLAYING = {
    "hidden_sizes": (8, 9),
    "horizon": 1,
    "batch_size": 16,
    "learning_starts": 100_000,
    "replay_capacity": 512,
}
KINDS = {
    "ppo": (
        "CartPole-v1",
        {"hidden_sizes": (8, 9), "horizon": 16, "minibatch_size": 64, "epochs": 2},
    ),
    "sac": ("Pendulum-v1", REPLAYING | {"normalize_observations": True}),
    "td3": ("Pendulum-v1", REPLAYING),
    "d3qn": ("CartPole-v1", REPLAYING | {"prioritized": True}),
}


@pytest.fixture(params=list(KINDS))
def algorithm(request: pytest.FixtureRequest) -> str:
    torch.set_num_threads(1)
    name: str = request.param
    return name


def make_work(name: str, train_work: MakeWork, **hyperparameters: Any) -> Work:
    """Two fresh agents of an algorithm; to be changed."""
    environment, values = KINDS[name]
    work = train_work(environment, members=2, envs=4, steps=4)
    work.cohort.algorithm = name
    for agent in work.cohort.members:
        agent.algorithm = name
        agent.hyperparameters.clear()
        for key, value in (values | hyperparameters).items():
            agent.hyperparameters[key].CopyFrom(hyperparameter_to_message(value))
    return work


def plant(
    work: Work, store: ObjectStore, mark: int
) -> tuple[agent_pb2.Parent, MemberState, dict[str, Any]]:
    """A committed checkpoint that no training made, in which no two numbers of a tensor are alike,
    and its replay."""
    grown, replay = grow(work, mark)
    marked = {
        group: {
            name: _marked(tensor, mark + index)
            for index, (name, tensor) in enumerate(tensors.items())
        }
        for group, tensors in grown.items()
    }
    normalizer = marked["normalizer"]
    if "observations.mean" in normalizer:  # what acts follows from what has been counted
        normalizer["observation_mean"] = normalizer["observations.mean"].float()
        normalizer["observation_scale"] = normalizer["observations.variance"].sqrt().float()
    else:  # this agent normalizes nothing
        normalizer.update(grown["normalizer"])
    groups: dict[str, Any] = {**marked, **_stored(replay)}
    prefix = f"{JOB}/agents/p{mark}/checkpoints/64-{mark}/"
    reference = save_checkpoint(store, prefix, groups, {"agent": f"{JOB}/agents/p{mark}"})
    parent = agent_pb2.Parent(agent=f"{JOB}/agents/p{mark}")
    parent.checkpoint.CopyFrom(
        agent_pb2.CheckpointReference(
            prefix=prefix, manifest_sha256=reference.manifest_sha256, env_steps=64
        )
    )
    return parent, marked, replay


def _stored(replay: dict[str, Any]) -> dict[str, Any]:
    return {f"replay/{name}": part for name, part in to_parts(replay).items()} if replay else {}


def grow(work: Work, seed: int) -> tuple[MemberState, dict[str, Any]]:
    """State and transitions of an agent of this kind that has taken a few steps."""
    cohort = cohort_from_message(work.cohort)
    environment = make_vec_environment(
        environment_from_message(work.cohort.environment), 4 * len(cohort.members)
    )
    algorithm = algorithm_class(cohort.algorithm)(
        cohort, environment.observation_space, environment.action_space
    )
    collector = Collector(environment, algorithm.actor, torch.tensor([seed, seed + 1]))
    for _ in range(3):
        algorithm.update(collector.collect(algorithm.horizon, policy_version=algorithm.version))
    return algorithm.member_state(0), algorithm.replay_state(0)


def _marked(tensor: torch.Tensor, mark: int) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor if tensor.dtype == torch.bool else tensor + 1000 * mark
    count = torch.arange(tensor.numel(), dtype=torch.float64).view(tensor.shape)
    return ((mark + (count * 0.6180339887498949) % 1.0) / 64).to(tensor.dtype)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def set_up(store: ObjectStore, tmp_path: Path) -> Iterator[Callable[[Work], RoundSetup]]:
    made: list[RoundSetup] = []
    config = LearnerConfig(
        orchestrator="unix:///nowhere",
        pod="projects/p/pods/a",
        store=store.url,
        tokens=tmp_path,
        device="cpu",
    )
    files = UserFiles(store, FileCache(tmp_path / "cache", 1 << 20), lambda: None)

    def start(work: Work) -> RoundSetup:
        made.append(set_up_round(work, config, None, files, ReplayCache()))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for setup in made:
        setup.close()


def inherits(work: Work, kind: str, *parents: agent_pb2.Parent, **fields: Any) -> None:
    """Have the child begin with these."""
    number = agent_pb2.InitializationKind.Value(f"INITIALIZATION_KIND_{kind}")
    initialization = agent_pb2.Initialization(kind=number, parents=parents, **fields)
    work.cohort.members[CHILD].initialization.CopyFrom(initialization)


def assert_equal(found: Any, expected: Any, *groups: str) -> None:
    for group in groups:
        assert expected[group], group
        for name, tensor in expected[group].items():
            assert torch.equal(found[group][name], tensor), (group, name)


def untouched(algorithm: Algorithm, work: Work, set_up: Callable[[Work], RoundSetup]) -> bool:
    """Whether the child's neighbour, and the child's own random streams, are those of fresh
    agents."""
    fresh = Work()
    fresh.CopyFrom(work)
    number = agent_pb2.INITIALIZATION_KIND_FRESH
    fresh.cohort.members[CHILD].initialization.CopyFrom(agent_pb2.Initialization(kind=number))
    without = set_up(fresh).algorithm
    assert_equal(algorithm.member_state(0), without.member_state(0), *without.member_state(0))
    assert_equal(algorithm.member_state(CHILD), without.member_state(CHILD), "random")
    return True


def test_a_copy_is_the_parent_bit_for_bit(algorithm, train_work, store, set_up):
    """Actor, critic, their targets, the optimizer, the normalizer, and what was learned besides."""
    work = make_work(algorithm, train_work)
    parent, marked, _ = plant(work, store, 3)
    inherits(work, "COPY", parent)
    found = set_up(work).algorithm
    state = found.member_state(CHILD)
    groups = set(marked) - {"random"}
    settings = {"noise_scale", "random_fraction"}  # of exploration: the child's own hyperparameters
    marked["actor"] = {
        name: tensor for name, tensor in marked["actor"].items() if name not in settings
    }
    assert_equal(state, marked, *groups)
    assert {"actor", "optimizer", "normalizer"} < groups
    if algorithm in ("sac", "td3", "d3qn"):
        targets = [
            name
            for group in ("actor", "critic")
            for name in marked.get(group, {})
            if "target" in name
        ]
        assert targets, "what an off-policy agent learns towards"
    assert untouched(found, work, set_up)


def test_without_the_optimizer_it_is_fresh(algorithm, train_work, store, set_up):
    work = make_work(algorithm, train_work)
    parent, marked, _ = plant(work, store, 3)
    fresh = set_up(work).algorithm.member_state(CHILD)
    inherits(work, "COPY", parent, keep_optimizer=False)
    state = set_up(work).algorithm.member_state(CHILD)
    assert_equal(state, fresh, "optimizer")
    assert_equal(state, marked, "normalizer")


def test_noise_is_the_documented_noise(algorithm, train_work, store, set_up):
    """On the actor's dense layers alone, as `perturb_actor` says: from the seed, relative to each
    layer's own."""
    work = make_work(algorithm, train_work)
    parent, marked, _ = plant(work, store, 3)
    states = []
    for seed in (5, 5, 6):
        inherits(work, "NOISE", parent, seed=seed, noise_scale=0.1)
        states.append(set_up(work).algorithm.member_state(CHILD))
    first, again, other = states
    assert_equal(first, again, *first)
    others = [group for group in marked if group in ("critic", "normalizer", "algorithm")]
    assert_equal(first, marked, *others)
    inherits(work, "COPY", parent)
    copy = set_up(work).algorithm
    perturb_actor(copy.actor, CHILD, 0.1, 5)  # type: ignore[arg-type]
    assert_equal(first, copy.member_state(CHILD), "actor")
    for name, tensor in marked["actor"].items():
        moved = first["actor"][name] - tensor
        if name.startswith("layers") and name.endswith("weight"):
            assert not torch.equal(first["actor"][name], other["actor"][name])
            assert float(moved.std()) == pytest.approx(0.1 * float(tensor.std()), rel=0.35)
        elif name.startswith("layers"):
            assert float(moved.abs().max()) == 0.0, name


def test_a_fusion_is_the_weighted_mean(algorithm, train_work, store, set_up):
    work = make_work(algorithm, train_work)
    (one, first, _), (other, second, _) = plant(work, store, 3), plant(work, store, 40)
    one.weight, other.weight = 3.0, 1.0
    inherits(work, "FUSE", one, other)
    found = set_up(work).algorithm
    state = found.member_state(CHILD)
    for group in ("actor", "critic", "normalizer"):
        for name, tensor in first.get(group, {}).items():
            if name in ("noise_scale", "random_fraction", "observation_mean", "observation_scale"):
                continue  # the child's own, and what follows from the rest
            mean = (0.75 * tensor.double() + 0.25 * second[group][name].double()).to(tensor.dtype)
            assert torch.equal(state[group][name], mean), (group, name)
    assert untouched(found, work, set_up)


def test_another_horizon_or_batch_keeps_the_weights(algorithm, train_work, store, set_up):
    parent, marked, _ = plant(make_work(algorithm, train_work), store, 3)
    changed = {"minibatch_size": 32, "epochs": 5} if algorithm == "ppo" else {"batch_size": 64}
    work = make_work(algorithm, train_work, horizon=8, **changed)
    inherits(work, "COPY", parent)
    found = set_up(work).algorithm
    assert found.horizon == 8
    marked["actor"] = {name: tensor for name, tensor in marked["actor"].items() if "layers" in name}
    assert_equal(found.member_state(CHILD), marked, "actor", "optimizer", "normalizer")


@pytest.mark.parametrize("algorithm", ["sac", "td3", "d3qn"], indirect=True)
@pytest.mark.parametrize("inherit", [True, False])
def test_transitions_come_along_where_they_are_wanted(
    algorithm, train_work, store, set_up, inherit
):
    work = make_work(algorithm, train_work)
    parent, _, replay = plant(work, store, 3)
    inherits(work, "COPY", parent, inherit_replay=inherit)
    setup = set_up(work)
    assert setup.algorithm.replay_state(0) == {}
    if not inherit:
        assert setup.algorithm.replay_state(CHILD) == {}
        return
    assert replay["reward"].shape == (3, 4)
    assert_equal({"replay": setup.algorithm.replay_state(CHILD)}, {"replay": replay}, "replay")
    setup.algorithm.update(setup.source.collect())
    grown = setup.algorithm.replay_state(CHILD)
    assert grown["reward"].shape == (4, 4)
    assert torch.equal(grown["reward"][:3], replay["reward"])
    assert torch.equal(grown["observation"][:3], replay["observation"][:3])


@pytest.mark.parametrize("algorithm", ["ppo", "sac"], indirect=True)
def test_children_of_one_parent_learn_with_their_own_rates_and_its_optimizer(
    algorithm, train_work, store, set_up
):
    """Adam moves a parameter by about its rate: a hundred times the rate moves a hundred times as
    far."""
    work = make_work(
        algorithm, train_work, **({} if algorithm == "ppo" else {"learning_starts": 4})
    )
    parent, marked, _ = plant(work, store, 3)
    for agent, rate in zip(work.cohort.members, (1e-5, 1e-3), strict=True):
        kind = agent_pb2.INITIALIZATION_KIND_COPY
        agent.initialization.CopyFrom(agent_pb2.Initialization(kind=kind, parents=[parent]))
        agent.hyperparameters["learning_rate"].CopyFrom(hyperparameter_to_message(rate))
    found = set_up(work)
    found.algorithm.update(found.source.collect())
    moved = []
    for member in (0, CHILD):
        state = found.algorithm.member_state(member)
        layers = [name for name in marked["actor"] if name.startswith("layers")]
        moved.append(
            sum(
                float((state["actor"][name] - marked["actor"][name]).abs().sum()) for name in layers
            )
        )
        counts = [name for name in marked["optimizer"] if name.endswith("step_count")]
        assert all(state["optimizer"][name] > marked["optimizer"][name] for name in counts)
    assert moved[1] / moved[0] == pytest.approx(100, rel=0.3)


@pytest.mark.parametrize("pod_name", ["fused", "split"])
def test_a_learner_process_finds_the_parent(pod_name, request, train_work):
    """A round of SAC that is too short to learn from ends with what it began with, and its few
    transitions."""
    torch.set_num_threads(1)
    lab = request.getfixturevalue(pod_name)
    work = make_work("sac", train_work, normalize_observations=False)
    work.budget.env_steps_per_member = 8
    store = open_store(lab.store)
    (one, first, replay), (other, second, _) = plant(work, store, 3), plant(work, store, 40)
    neighbour = work.cohort.members[0]
    fusion = agent_pb2.Initialization(kind=agent_pb2.INITIALIZATION_KIND_FUSE, parents=[one, other])
    neighbour.initialization.CopyFrom(fusion)
    inherits(work, "COPY", one, inherit_replay=True)
    granted = lab.orchestrator.offer(train=work)
    assert granted.over.wait(60), "the lease was not ended"
    assert granted.completed is not None, granted.released
    fused, copy = (
        load_checkpoint(
            store, member.final.checkpoint.prefix, member.final.checkpoint.manifest_sha256
        )
        for member in granted.completed.train.members
    )
    networks = {
        group: {name: t for name, t in first[group].items() if "layers" in name}
        for group in ("actor", "critic")
    }
    assert_equal(
        copy.groups, networks | {"optimizer": first["optimizer"]}, "actor", "critic", "optimizer"
    )
    for group, tensors in networks.items():
        for name, tensor in tensors.items():
            mean = (0.5 * tensor.double() + 0.5 * second[group][name].double()).to(tensor.dtype)
            assert torch.equal(fused.groups[group][name], mean), (group, name)
    transitions = stored_transitions(copy)
    assert transitions is not None
    assert torch.equal(transitions["reward"][:3], replay["reward"])
    assert transitions["reward"].shape[0] == 5
    assert copy.groups["random"]["seed"] == work.cohort.members[CHILD].seed
