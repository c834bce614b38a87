"""A policy alone acts as the member that it was taken from, and survives torch.export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.errors import InvalidInput
from podracer_core.networks import (
    ActionHead,
    Architecture,
    DeterministicHead,
    Exploration,
    NetworkActor,
    SquashedGaussianHead,
    ValueHead,
    make_policy_head,
)
from podracer_core.random_numbers import action_keys
from support.errors import raises

Space = gymnasium.Space[Any]
MEMBERS, ENVS = 3, 4
OBSERVATIONS: dict[str, Space] = {
    "vector": gymnasium.spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
    "channels_last": gymnasium.spaces.Box(0, 255, (36, 37, 3), np.uint8),
    "channels_first": gymnasium.spaces.Box(0, 255, (1, 36, 37), np.uint8),
}
BOX = gymnasium.spaces.Box(
    np.array([[-2.0], [0.0]], np.float32), np.array([[2.0], [1.0]], np.float32)
)
DISCRETE = gymnasium.spaces.Discrete(4, start=3)
EXPLORATION = Exploration("independent", 1, 6, 2)
# What acts: its action space, its head, networks a member.
HEADS: dict[str, tuple[Space, Callable[[Space], ActionHead], int]] = {
    "discrete": (DISCRETE, make_policy_head, 1),
    "multi_discrete": (
        gymnasium.spaces.MultiDiscrete([3, 2, 4], start=[5, 0, 1]),
        make_policy_head,
        1,
    ),
    "multi_binary": (gymnasium.spaces.MultiBinary(5), make_policy_head, 1),
    "box": (BOX, make_policy_head, 1),
    "deterministic": (BOX, lambda space: DeterministicHead(space, EXPLORATION), 1),
    "squashed_gaussian": (BOX, lambda space: SquashedGaussianHead(space, EXPLORATION), 1),
    "values": (DISCRETE, lambda space: ValueHead(space, dueling=False), 1),
    "dueling_values": (DISCRETE, lambda space: ValueHead(space, dueling=True), 1),
    "quantile_values": (DISCRETE, lambda space: ValueHead(space, dueling=False, quantiles=3), 1),
    "ensemble_of_values": (DISCRETE, lambda space: ValueHead(space, dueling=False), 2),
    "dueling_ensemble_of_values": (DISCRETE, lambda space: ValueHead(space, dueling=True), 5),
}
EVERY = pytest.mark.parametrize("kind", HEADS)
SEEN = pytest.mark.parametrize("seen", OBSERVATIONS)


def idle(kind: str, seen: str, members: int = MEMBERS) -> NetworkActor:
    space, make_head, ensemble = HEADS[kind]
    head = make_head(space)
    architecture = Architecture.of(OBSERVATIONS[seen], (8, 9), head.output_size)
    return NetworkActor.idle(
        architecture, head, OBSERVATIONS[seen], members, "cpu", normalize=True, ensemble=ensemble
    )


def trained(kind: str, seen: str = "vector") -> NetworkActor:
    """Not trained, but with weights, settings and a normalizer that leave nothing at its neutral
    value."""
    torch.manual_seed(0)
    actor = idle(kind, seen)
    for name, tensor in actor.network.tensors.items():
        tensor.normal_(std=0.1 if name.startswith("convolutions") else 0.5)
    for setting in actor.settings.values():
        setting.uniform_(0.2, 0.8)
    if seen == "vector":
        actor.mean.normal_()
        actor.scale.uniform_(0.5, 2.0)
    return actor


def observations(seen: str, *rows: int) -> torch.Tensor:
    shape = OBSERVATIONS[seen].shape
    assert shape is not None
    if seen == "vector":
        return 5 * torch.randn(*rows, *shape)
    return torch.randint(256, (*rows, *shape), dtype=torch.uint8)


@EVERY
@SEEN
def test_policy_equals_the_greedy_actor(kind, seen):
    actor, space = trained(kind, seen), HEADS[kind][0]
    observation = observations(seen, MEMBERS, 11)
    greedy = actor.greedy(observation)
    # the environment adds it to what an actor gives
    start = torch.as_tensor(getattr(space, "start", 0))
    for member in range(MEMBERS):
        action = actor.policy(member)(observation[member])
        torch.testing.assert_close(action, greedy[member] + start, rtol=1e-4, atol=1e-4)
        assert space.contains(action[0].numpy() if action.dim() > 1 else int(action[0]))
        torch.testing.assert_close(
            actor.greedy(observation)[member],
            actor.member(member).greedy(observation[member : member + 1])[0],
            rtol=1e-4,
            atol=1e-4,
        )
    assert greedy.flatten(1).unique().numel() > 1, "else nothing is compared"


@EVERY
def test_policy_exports_with_any_batch_size(kind):
    policy = trained(kind).policy(1)
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        policy, (torch.zeros(2, 2, 3),), dynamic_shapes=({0: batch},)
    ).module()
    for size in (1, 2, 5):
        observation = observations("vector", size)
        assert torch.equal(program(observation), policy(observation))


@pytest.mark.parametrize("seen", ["channels_last", "channels_first"])
def test_policies_of_images_export_too(seen):
    policy = trained("discrete", seen).policy(1)
    example, batch = observations(seen, 2), torch.export.Dim("batch")
    program = torch.export.export(policy, (example,), dynamic_shapes=({0: batch},)).module()
    for size in (1, 5):
        observation = observations(seen, size)
        assert torch.equal(program(observation), policy(observation))


@EVERY
@SEEN
def test_a_worker_needs_only_the_actor_state(kind, seen):
    actor, worker = trained(kind, seen), idle(kind, seen)
    worker.load_state(actor.state())
    observation = observations(seen, MEMBERS, ENVS)
    noise = worker.draw_noise(action_keys(torch.arange(MEMBERS), ENVS), torch.tensor([0, 5, 9]), 6)
    assert noise.shape == (6, MEMBERS, ENVS, worker.head.noise_size)
    for mine, theirs in zip(
        worker.act(observation, noise[0]), actor.act(observation, noise[0]), strict=True
    ):
        assert torch.equal(mine, theirs)
        assert mine.shape[:2] == (MEMBERS, ENVS)
    with pytest.raises(InvalidInput, match="another cohort"):
        idle(kind, seen, members=2).load_state(actor.state())


def test_networks_that_memory_has_no_room_for_are_refused():
    space = OBSERVATIONS["vector"]
    head = make_policy_head(gymnasium.spaces.Discrete(2), "cpu")
    architecture = Architecture.of(space, (16384,) * 8, head.output_size)
    with raises(InvalidInput, "NETWORKS_TOO_LARGE", match="these sizes"):
        NetworkActor.idle(architecture, head, space, 1024, "cpu", normalize=True)
    with raises(InvalidInput, "NETWORKS_TOO_LARGE", match="these sizes"):
        idle("discrete", "vector").repeat(1 << 40)


@EVERY
def test_repeated_members_act_as_the_one_that_they_are(kind):
    actor, observation = trained(kind), observations("vector", MEMBERS, 2 * ENVS)
    repeated = actor.repeat(2).greedy(observation.view(2 * MEMBERS, ENVS, 2, 3))
    torch.testing.assert_close(
        repeated.view(MEMBERS, 2 * ENVS, *repeated.shape[2:]), actor.greedy(observation)
    )


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "dueling_ensemble_of_values"])
def test_masks_are_obeyed_greedily_and_at_random(kind):
    actor, observation = trained(kind), observations("vector", MEMBERS, ENVS)
    sizes = [3, 2, 4] if kind == "multi_discrete" else [4]
    only = [size - 1 for size in sizes]  # the last choice of each part is the only one
    mask = torch.cat([torch.arange(size) == last for size, last in zip(sizes, only, strict=True)])
    mask = mask.expand(MEMBERS, ENVS, -1)
    noise = actor.draw_noise(
        action_keys(torch.arange(MEMBERS), ENVS), torch.zeros(MEMBERS).long(), 20
    )
    for chosen in (
        actor.greedy(observation, mask),
        *(actor.act(observation, row, mask)[0] for row in noise),
    ):
        assert (chosen.view(MEMBERS, ENVS, -1) == torch.tensor(only)).all()


def test_pixels_become_zero_to_one_and_are_not_clipped():
    actor = idle("discrete", "channels_last")
    assert actor.limit is None
    normalized = actor.normalize(observations("channels_last", MEMBERS, ENVS))
    assert normalized.shape == (MEMBERS, ENVS, 36 * 37 * 3)
    assert normalized.min() == 0
    assert normalized.max() == 1


def test_an_evaluator_needs_only_two_groups_of_a_checkpoint():
    actor = trained("box")
    groups = {
        "actor": {
            name: tensor[2].clone()
            for name, tensor in (actor.network.tensors | actor.settings).items()
        },
        "normalizer": {
            "observation_mean": actor.mean[2, 0],
            "observation_scale": actor.scale[2, 0],
        },
    }
    evaluator = idle("box", "vector", members=1)
    evaluator.load_member_state(0, groups)
    observation = observations("vector", MEMBERS, ENVS)
    torch.testing.assert_close(evaluator.greedy(observation[2:]), actor.greedy(observation)[2:])
    with pytest.raises(InvalidInput, match="observation_mean"):
        evaluator.load_member_state(0, {"actor": groups["actor"]})


def test_an_ensembles_state_has_a_members_networks_together():
    actor = trained("ensemble_of_values")
    state = actor.state()
    assert state["layers.0.weight"].shape == (MEMBERS, 2, 6, 8)
    observation = observations("vector", MEMBERS, ENVS)
    assert torch.equal(actor.member(1).greedy(observation[1:2])[0], actor.greedy(observation)[1])


def test_noise_belongs_to_the_agents_own_step():
    actor = trained("box")
    key = action_keys(torch.arange(MEMBERS), ENVS)
    long = actor.draw_noise(key, torch.tensor([0, 10, 0]), 8)
    late = actor.draw_noise(key, torch.tensor([3, 13, 3]), 5)
    assert torch.equal(long[3:], late)
    assert long.unique().numel() == long.numel()


def test_snapshots_do_not_follow_the_learner():
    actor = trained("discrete")
    snapshot, observation = actor.member(1), observations("vector", 1, ENVS)
    before = snapshot.greedy(observation)
    actor.network.weights[0].neg_()
    assert torch.equal(snapshot.greedy(observation), before)
