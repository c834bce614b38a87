"""What every off-policy algorithm owes to its members: each is what it would be alone, and goes on
where it stopped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from podracer_core.algorithms import Algorithm, OffPolicy, algorithm_class
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import action_keys
from support.off_policy import (
    BOX,
    CONTINUOUS,
    DISCRETE,
    DISTINCT,
    ENVS,
    EVERY,
    HORIZON,
    OBSERVATION_SPACE,
    OBSERVATIONS,
    VALUE_BASED,
    build,
    cut,
    history,
    pieces,
    same_state,
    select,
    train,
    weights,
)

ALL = pytest.mark.parametrize("name", DISTINCT)
# What may change how transitions are drawn, on top of the defaults.
REPLAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "n_step": {"n_step": 3},
    "prioritized": {"prioritized": True, "n_step": 2, "importance_steps": 50},
    "normalized": {"normalize_observations": True},
}
MIXED = {"mixed": {"replay": "mixed", "n_step": 2}}  # here a member is not the same alone


def test_these_are_all_of_them():
    assert len(EVERY) == 13
    assert set(EVERY) == {*VALUE_BASED, *CONTINUOUS, "discrete_sac"}


@pytest.mark.parametrize("replay", REPLAYS)
@ALL
def test_a_cohort_gives_what_its_agents_give_alone(name, replay):
    cohort = build(name, **REPLAYS[replay])
    rollout = history(cohort, HORIZON)
    alone = [build(name, m, **REPLAYS[replay]) for m in range(3)]
    for m in range(3):
        assert same_state(cohort, m, alone[m], 0)
    start = [weights(cohort, m) for m in range(3)]
    together = cohort.update(rollout)
    assert cohort.gradient_steps == 2
    for m in range(3):
        metrics = alone[m].update(select(rollout, m))
        torch.testing.assert_close(weights(alone[m], 0), weights(cohort, m), rtol=1e-5, atol=1e-6)
        for metric, value in metrics.items():
            torch.testing.assert_close(value[0], together[metric][m], rtol=1e-4, atol=1e-5)
        assert not torch.equal(weights(cohort, m), start[m])
    assert cohort.active.all()


@ALL
def test_the_order_and_the_company_of_members_do_not_matter(name):
    trio, pair = build(name), build(name, 2, 0)
    rollout = history(trio, HORIZON)
    trio.update(rollout)
    pair.update(select(rollout, 2, 0))
    torch.testing.assert_close(weights(pair, 0), weights(trio, 2), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights(pair, 1), weights(trio, 0), rtol=1e-5, atol=1e-6)


@ALL
def test_every_hyperparameter_is_the_members_own(name):
    """Where another member's differs, the first one does not notice; where its own differs, it
    does."""
    usual, other, own = build(name), build(name), build(name)
    rollout = history(usual, 4 * HORIZON)
    values = {"learning_rate": 2e-3, "gamma": 0.3}
    if "target_rate" in usual.hyperparameters:
        values["target_rate"] = 0.3
    other.set_hyperparameters(1, values)
    own.set_hyperparameters(0, values)
    for algorithm in (usual, other, own):
        train(algorithm, rollout)
    assert torch.equal(weights(usual, 0), weights(other, 0))
    assert torch.equal(weights(usual, 2), weights(own, 2))
    assert not torch.allclose(weights(usual, 1), weights(other, 1))
    assert not torch.allclose(weights(usual, 0), weights(own, 0))


@pytest.mark.parametrize("replay", ["plain", "prioritized", "mixed"])
@ALL
def test_same_seed_twice_gives_equal_weights_bit_for_bit(name, replay):
    first, second = (build(name, **(REPLAYS | MIXED)[replay]) for _ in range(2))
    rollout = history(first, 5 * HORIZON)
    train(first, rollout)
    train(second, rollout)
    assert all(same_state(first, m, second, m) for m in range(3))
    assert all(weights(first, m).isfinite().all() for m in range(3))


def hand_over(source: OffPolicy, target: OffPolicy) -> None:
    """Load the states of three members and their replay."""
    for m in range(3):
        target.load_member_state(m, source.member_state(m))
    target.load_replay_states([source.replay_state(m) for m in range(3)])


@pytest.mark.parametrize("replay", ["plain", "n_step", "normalized"])
@ALL
def test_resuming_from_member_states_and_their_replay_is_exact(name, replay):
    """Also where agents of other seeds were. Of prioritized replay the priorities do not go with
    the transitions."""
    through = build(name, alike=True, updates_per_step=0.13, **REPLAYS[replay])
    resumed = build(name, 2, 0, 1, alike=True, updates_per_step=0.13, **REPLAYS[replay])
    parts = list(pieces(history(through, 9 * HORIZON)))
    for part in parts[:5]:
        through.update(part)
    hand_over(through, resumed)
    resumed.version = through.version
    for part in parts[5:]:
        metrics, again = through.update(part), resumed.update(part)
        assert all(
            torch.equal(value, again[key]) for key, value in metrics.items() if key == "critic_loss"
        )
    assert through.gradient_steps == resumed.gradient_steps > 0
    assert all(same_state(through, m, resumed, m) for m in range(3))
    for key, tensor in through.actor_state().items():
        assert torch.equal(tensor, resumed.actor_state()[key])


@pytest.mark.parametrize("replay", ["mixed", "shared"])
def test_a_cohort_that_shares_its_transitions_resumes_exactly(replay):
    through, resumed = (build("sac", replay=replay) for _ in range(2))
    parts = list(pieces(history(through, 9 * HORIZON)))
    for part in parts[:5]:
        through.update(part)
    hand_over(through, resumed)
    for part in parts[5:]:
        through.update(part)
        resumed.update(part)
    assert through.gradient_steps == resumed.gradient_steps > 0
    assert all(same_state(through, m, resumed, m) for m in range(3))


@ALL
def test_without_its_transitions_a_member_collects_before_it_learns_again(name):
    through, resumed = (build(name, learning_starts=60) for _ in range(2))
    rollout = history(through, 6 * HORIZON)
    train(through, cut(rollout, 0, 5 * HORIZON))
    for m in range(3):
        resumed.load_member_state(m, through.member_state(m))
    before = weights(resumed, 0)
    resumed.update(cut(rollout, 5 * HORIZON, 6 * HORIZON))
    assert torch.equal(before, weights(resumed, 0))
    # It has long been acting on its own, and goes on with that.
    if "random_fraction" in resumed.actor.settings:
        settings = (each.actor.settings["random_fraction"] for each in (through, resumed))
        assert all((setting < 1).all() for setting in settings)


@ALL
def test_a_child_takes_its_parents_state_but_keeps_its_own_randomness(name):
    algorithm = build(name, alike=True)
    rollout = history(algorithm, 3 * HORIZON)
    train(algorithm, rollout)
    parent, own = algorithm.member_state(0), algorithm.member_state(2)["random"]
    algorithm.load_member_state(2, {group: parent[group] for group in parent if group != "random"})
    assert same_state(algorithm, 0, algorithm, 2, "random")
    assert torch.equal(algorithm.member_state(2)["random"]["seed"], own["seed"])
    others = [weights(algorithm, m) for m in (0, 1)]
    algorithm.perturb_member(2, 0.1, seed=5)
    assert all(
        torch.equal(before, weights(algorithm, m)) for before, m in zip(others, (0, 1), strict=True)
    )
    assert same_state(algorithm, 0, algorithm, 2, "random", "actor")
    _, weight, *_ = (name for name in parent["actor"] if name.endswith(".weight"))
    old, new = parent["actor"][weight], algorithm.member_state(2)["actor"][weight]
    assert 0.05 < ((new - old).std() / old.std()).item() < 0.15


@ALL
def test_a_workers_actor_acts_as_the_learners(name):
    algorithm: Algorithm = build(name, normalize_observations=True)
    train(algorithm, history(algorithm, 3 * HORIZON))
    for member in range(3):
        algorithm.perturb_member(member, 0.5, seed=member)
    action_space = BOX if name in CONTINUOUS else DISCRETE
    worker = algorithm_class(name).make_actor(algorithm.cohort, OBSERVATION_SPACE, action_space)
    worker.load_state(algorithm.actor_state())
    generator = torch.Generator().manual_seed(0)
    observation = 3 * torch.randn(3, ENVS, OBSERVATIONS, generator=generator)
    keys, steps = action_keys(torch.arange(3), ENVS), torch.tensor([4, 50, 6])
    for drawn in algorithm.actor.draw_noise(keys, steps, 4):
        mine, theirs = algorithm.actor.act(observation, drawn), worker.act(observation, drawn)
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])
    assert torch.equal(algorithm.actor.greedy(observation), worker.greedy(observation))
    policy = algorithm.actor.policy(1)
    torch.testing.assert_close(policy(observation[1]), worker.greedy(observation)[1])


@ALL
def test_bad_hyperparameters_are_refused_and_nothing_is_changed(name):
    algorithm = build(name)
    before = {key: value.clone() for key, value in algorithm.hyperparameters.items()}
    for values, message in (
        ({"learning_rate": 2e-3, "gamma": 1.5}, "gamma"),
        ({"target_rate": 0.0}, "target_rate"),
        ({"learning_rate": torch.nan}, "learning_rate"),
        ({"batch_size": 8}, "one for the whole cohort"),
        ({"gama": 0.9}, "did you mean gamma"),
    ):
        with pytest.raises(InvalidInput, match=message):
            algorithm.set_hyperparameters(1, values)
    assert all(torch.equal(before[key], value) for key, value in algorithm.hyperparameters.items())
    algorithm.set_hyperparameters(1, {"gamma": 0.7})
    assert algorithm.hyperparameters["gamma"].tolist() == pytest.approx([0.9, 0.7, 0.5])
    for shared in (
        {"n_step": 0},
        {"replay": "everybody"},
        {"prioritized": 1},
        {"updates_per_step": 0.0},
    ):
        with pytest.raises(InvalidInput, match=next(iter(shared))):
            build(name, **shared)


@ALL
def test_states_and_rollouts_of_another_shape_are_refused(name):
    algorithm, wider = build(name), build(name, hidden_sizes=(10, 10))
    with pytest.raises(InvalidInput, match="expected"):
        algorithm.load_member_state(0, wider.member_state(0))
    for company in ((0,), (0, 1)):  # one member's rollout must not become everybody's
        with pytest.raises(InvalidInput, match=f"{len(company)} members .* 3"):
            algorithm.update(history(build(name, *company), HORIZON))
    algorithm.update(history(algorithm, HORIZON))
    with pytest.raises(InvalidInput, match="3 x 5 environments does"):
        algorithm.update(history(algorithm, HORIZON, envs=ENVS + 1))
    assert algorithm.active.all()


@ALL
def test_shared_replay_lets_a_member_learn_from_the_others(name):
    rollout = history(build(name), 2 * HORIZON)
    changed = select(rollout, 0, 1, 2)
    changed.reward[:, 2] += 5.0
    for replay, alike in (("member", True), ("mixed", False), ("shared", False)):
        first, second = build(name, replay=replay), build(name, replay=replay)
        train(first, rollout)
        train(second, changed)
        assert torch.equal(weights(first, 0), weights(second, 0)) == alike
        assert not torch.equal(weights(first, 2), weights(second, 2))
