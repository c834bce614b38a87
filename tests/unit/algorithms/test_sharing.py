"""What learners of one cohort share: every algorithm gives all that training moves, and takes it
over exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from podracer_core.algorithms import Algorithm, OffPolicy, OnPolicy
from podracer_core.buffers import Rollout
from podracer_core.errors import InvalidInput
from podracer_core.fusion import Contribution, FusionOptions, FusionState, Mean, fuse
from support.errors import raises
from support.off_policy import EVERY, build, history, train

MakeOnPolicy = Callable[..., OnPolicy]
MakeRollout = Callable[..., Rollout]
# Of each member, what its own learner keeps: moments, replay, streams, running averages of losses.
OWN = {"optimizer", "random"}


def same(one: Algorithm, other: Algorithm, groups: set[str] | None = None) -> bool:
    for member in range(one.members):
        first, second = one.member_state(member), other.member_state(member)
        for group in groups or set(first):
            if any(
                not torch.equal(tensor, second[group][name])
                for name, tensor in first[group].items()
            ):
                return False
    return True


def mean_of(begun: FusionState, growths: list[FusionState]) -> FusionState:
    brought = [
        Contribution(rank, 1, int(one.transitions.sum()), one) for rank, one in enumerate(growths)
    ]
    return fuse(Mean(FusionOptions()), begun, brought)


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize(
    ("name", "kind"), [("ppo", "box"), ("ppo", "discrete"), ("a2c", "discrete"), ("ppo", "image")]
)
def test_an_on_policy_learner_that_fuses_alone_is_as_one_that_does_not(
    make_on_policy, make_rollout, name, kind, normalizes
):
    settings = dict.fromkeys(
        ("normalize_values", "normalize_rewards", "normalize_observations"), normalizes
    )
    learner, twin = (make_on_policy(name, kind, **settings) for _ in range(2))
    sharing = learner.share(0)
    present = sharing.state()
    for update in range(3):
        rollout = replace(make_rollout(twin.actor, update), policy_version=update)
        for one in (learner, twin):
            one.update(rollout)
        present = mean_of(present, [sharing.growth()])
        sharing.load(present)
    assert normalizes or same(learner, twin)
    for member in range(learner.members):
        own, others = learner.member_state(member), twin.member_state(member)
        for group in others:
            torch.testing.assert_close(own[group], others[group], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "kind"), [("ppo", "box"), ("ppo", "image"), ("a2c", "discrete")])
def test_an_on_policy_learner_takes_its_own_state_over_bit_for_bit(
    make_on_policy, make_rollout, name, kind
):
    learner = make_on_policy(name, kind, normalize_values=True)
    for update in range(3):
        learner.update(replace(make_rollout(learner.actor, update), policy_version=update))
    before = [learner.member_state(member) for member in range(learner.members)]
    sharing = learner.share(0)
    sharing.load(sharing.state())
    for member, groups in enumerate(before):
        after = learner.member_state(member)
        for group in ("actor", "critic", "optimizer", "random"):
            assert all(
                torch.equal(after[group][name], tensor) for name, tensor in groups[group].items()
            ), group


@pytest.mark.parametrize("name", EVERY)
def test_an_off_policy_learner_takes_its_own_state_over_bit_for_bit(name):
    learner, twin = build(name), build(name)
    sharing = learner.share(0)
    for seed in range(2):
        for one in (learner, twin):
            train(one, history(one, 20, seed))
        sharing.load(sharing.state())
        assert same(learner, twin)


def on_policy_pair(
    make: MakeOnPolicy, make_rollout: MakeRollout, **settings: Any
) -> list[tuple[OnPolicy, Any]]:
    """Two learners of one cohort, each after two updates on rollouts of its own."""
    pair = []
    for rank in range(2):
        learner = make("ppo", "box", **settings)
        sharing = learner.share(rank)
        for update in range(2):
            learner.update(
                replace(make_rollout(learner.actor, 10 * rank + update), policy_version=update)
            )
        pair.append((learner, sharing))
    return pair


def test_learners_that_fuse_are_one_but_for_what_is_their_own(make_on_policy, make_rollout):
    begun = make_on_policy("ppo", "box").share(0).state()
    (lead, first), (follower, second) = on_policy_pair(make_on_policy, make_rollout)
    own = [learner.member_state(0)["optimizer"] for learner in (lead, follower)]
    fused = mean_of(begun, [first.growth(), second.growth()])
    for sharing in (first, second):
        sharing.load(fused)
    assert same(lead, follower, {"actor", "critic", "normalizer", "algorithm"})
    for learner, moments in zip((lead, follower), own, strict=True):
        assert all(
            torch.equal(learner.member_state(0)["optimizer"][name], moments[name])
            for name in moments
        )
    seen = 2 * 2 * 5 * 4
    assert lead.member_state(1)["normalizer"]["observations.count"] == seen
    assert lead.member_state(1)["normalizer"]["rewards.count"] == seen
    assert lead.member_state(1)["random"]["transition_count"] == seen
    assert first.growth().transitions.eq(0).all()
    for name, tensor in fused.parameters.items():
        torch.testing.assert_close(first.state().parameters[name], tensor, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("normalizes", ["values", "rewards"])
def test_a_critic_is_averaged_in_units_of_reward(make_on_policy, make_rollout, normalizes):
    """Learners whose rewards have other scales have other units: the mean predicts the mean of what
    they predict."""
    learners = []
    for rank in range(2):
        settings = {
            f"normalize_{what}": what == normalizes
            for what in ("observations", "values", "rewards")
        }
        learner = make_on_policy("ppo", "box", hidden_sizes=(8,), **settings)
        sharing = learner.share(rank)
        rollout = make_rollout(learner.actor, 1)
        learner.update(replace(rollout, reward=rollout.reward * 100.0**rank + 1000.0 * rank))
        learners.append((learner, sharing))
    (lead, first), (_, second) = learners
    begun, growths = first.state(), [first.growth(), second.growth()]
    # Only the last layers differ, in which a prediction is linear.
    for name in begun.parameters:
        if name not in ("critic.layers.1.weight", "critic.layers.1.bias"):
            growths[1].parameters[name].copy_(growths[0].parameters[name])  # type: ignore[index]
    observation = make_rollout(lead.actor, 3).observation
    predictions = []
    for growth in growths:
        first.load(replace(begun, parameters=growth.parameters))
        predictions.append(predicted(lead, observation))
    first.load(mean_of(begun, growths))
    expected = torch.stack(predictions).mean(0)
    assert expected.abs().max() > 100.0
    torch.testing.assert_close(predicted(lead, observation), expected, rtol=1e-4, atol=1e-2)


def predicted(learner: OnPolicy, observation: torch.Tensor) -> torch.Tensor:
    """In units of reward, [T, M, E]."""
    unit = (
        1.0
        if learner._preparation.values.rewards is None
        else learner._preparation.values.rewards.divisor().unsqueeze(1)
    )
    return learner._preparation.values(observation) * unit


def test_the_observation_normalizer_rests_between_fusions(make_on_policy, make_rollout):
    learner = make_on_policy("ppo", "box")
    sharing = learner.share(0)
    begun = sharing.state()
    for update in range(2):
        learner.update(replace(make_rollout(learner.actor, update), policy_version=update))
        assert learner.actor.mean.eq(0).all()
    sharing.load(mean_of(begun, [sharing.growth()]))
    alone = make_on_policy("ppo", "box")
    for update in range(2):
        alone._observations.update(make_rollout(alone.actor, update), alone.active)
    torch.testing.assert_close(learner.actor.mean, alone.actor.mean)
    torch.testing.assert_close(learner.actor.scale, alone.actor.scale)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_begin_alike_and_draw_other_numbers(make_on_policy, make_rollout, rank):
    learner = make_on_policy("ppo", "box", normalize_observations=False)
    alone = make_on_policy("ppo", "box", normalize_observations=False)
    learner.share(rank)
    assert same(learner, alone, {"actor", "critic"})
    rollout = make_rollout(alone.actor)
    for one in (learner, alone):
        one.update(rollout)
    assert same(learner, alone) == (rank == 0)


def test_off_policy_ranks_draw_other_transitions():
    learners = [build("sac") for _ in range(3)]
    for learner, rank in zip(learners[1:], (0, 1), strict=True):
        learner.share(rank)
    for learner in learners:
        train(learner, history(learner, 20))
    assert same(learners[0], learners[1])
    assert not same(learners[0], learners[2], {"actor"})


@pytest.mark.parametrize("name", EVERY)
def test_off_policy_learners_that_fuse_are_one_but_for_what_is_their_own(name):
    learners = [build(name) for _ in range(2)]
    sharings = [learner.share(rank) for rank, learner in enumerate(learners)]
    begun = sharings[0].state()
    for rank, learner in enumerate(learners):
        train(learner, history(learner, 30, rank))
    growths = [sharing.growth() for sharing in sharings]
    if "temperature" in learners[0].metrics:
        assert "log_temperature" in begun.parameters
    moved = [
        key
        for key, tensor in begun.parameters.items()
        if not torch.equal(tensor, growths[0].parameters[key])
    ]
    assert {key.split(".")[0] for key in moved} >= set(learners[0].networks)
    fused = mean_of(begun, growths)
    for sharing in sharings:
        sharing.load(fused)
    groups = set(learners[0].member_state(0)) - OWN - {"algorithm"}
    assert same(*learners, groups)
    first, second = (sharing.state() for sharing in sharings)
    assert all(
        torch.equal(tensor, second.parameters[key]) for key, tensor in first.parameters.items()
    )
    assert learners[1].member_state(2)["algorithm"]["transition_count"] == 2 * 30 * 4


def test_an_epoch_off_policy_is_500_gradient_steps_the_first_of_them_alone():
    learner: OffPolicy = build("sac")
    for steps, epochs in ((0, 0), (1, 1), (500, 1), (501, 2), (1000, 2), (1001, 3)):
        learner.gradient_steps = steps
        assert learner.epochs == epochs


def test_a_member_that_diverged_here_goes_on_with_what_the_others_have(
    make_on_policy, make_rollout
):
    (lead, first), (_, second) = on_policy_pair(make_on_policy, make_rollout)
    begun = make_on_policy("ppo", "box").share(0).state()
    lead.active[1] = False
    fused = mean_of(begun, [first.growth(), second.growth()])
    first.load(fused)
    assert lead.active.all()
    theirs = second.growth().parameters
    assert torch.equal(
        first.state().parameters["actor.layers.0.weight"][1], theirs["actor.layers.0.weight"][1]
    )


def test_the_state_of_another_cohort_is_refused(make_on_policy):
    other = make_on_policy("ppo", "box", 0, 1).share(0).state()
    with raises(InvalidInput, "COHORT_MISMATCH"):
        make_on_policy("ppo", "box").share(1).load(other)
