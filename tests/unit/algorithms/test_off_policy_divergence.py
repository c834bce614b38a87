"""A member that diverges is frozen as it was before and reported; the others are not affected."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from podracer_core.buffers import Rollout
from support.off_policy import (
    DISTINCT,
    HORIZON,
    build,
    cut,
    history,
    make_batch,
    same_state,
    select,
    set_outputs,
    train,
    weights,
)

ALL = pytest.mark.parametrize("name", DISTINCT)
WAYS = {"plain": {}, "prioritized": {"prioritized": True}, "n_step": {"n_step": 3}}


def with_reward(rollout: Rollout, member: int, reward: float) -> Rollout:
    """The same, but every reward of that member is this."""
    changed = select(rollout, *range(rollout.members))
    changed.reward[:, member] = reward
    return changed


def finite(algorithm: Any, member: int) -> bool:
    return all(
        tensor.isfinite().all()
        for group in algorithm.member_state(member).values()
        for tensor in group.values()
    )


@pytest.mark.parametrize(
    ("name", "reward"),
    # FlashSAC divides by the largest return, and QR-DQN's slope has a bound: a reward of 1e38
    # breaks nothing.
    [
        (name, reward)
        for name in DISTINCT
        for reward in (torch.inf, torch.nan, 1e38)
        if name not in ("flash_sac", "qr_dqn") or reward != 1e38
    ],
)
def test_a_member_without_finite_rewards_freezes_as_it_was_and_the_others_go_on(name, reward):
    healthy, sick = build(name), build(name)
    rollout = history(healthy, 6 * HORIZON)
    # A ring of 16 rows: from the fourth rollout on nothing but bad rewards is left, and from the
    # seventh on good ones.
    train(healthy, rollout)
    train(sick, cut(rollout, 0, 2 * HORIZON))
    assert sick.active.all()
    before = weights(sick, 1)
    bad = with_reward(rollout, 1, reward)
    for start in range(2 * HORIZON, 6 * HORIZON, HORIZON):
        metrics = sick.update(cut(bad, start, start + HORIZON))
    assert metrics["active"].tolist() == [True, False, True]
    assert same_state(sick, 0, healthy, 0)
    assert same_state(sick, 2, healthy, 2)
    assert finite(sick, 1)
    frozen = weights(sick, 1)
    later = history(healthy, 5 * HORIZON, seed=1)
    train(sick, later)
    assert sick.active.tolist() == [True, False, True]
    assert torch.equal(weights(sick, 1), frozen)
    train(healthy, later)
    assert same_state(sick, 0, healthy, 0)
    # It may have taken steps on good transitions before the first bad one came up, but none on
    # that.
    assert (frozen - before).abs().max() < 1.0


@pytest.mark.parametrize("way", WAYS)
@ALL
def test_the_very_first_bad_step_changes_nothing(name, way):
    healthy, sick = build(name, **WAYS[way]), build(name, **WAYS[way])
    before = weights(sick, 1)
    rollout = history(healthy, HORIZON)
    metrics = healthy.update(rollout), sick.update(with_reward(rollout, 1, torch.inf))
    assert metrics[1]["active"].tolist() == [True, False, True]
    assert torch.equal(weights(sick, 1), before)
    for optimizer in sick.optimizers.values():
        assert optimizer.step_count[1] == 0
        assert optimizer.first_moment[1].abs().sum() == 0
    assert same_state(sick, 0, healthy, 0)
    assert same_state(sick, 2, healthy, 2)
    for key, value in metrics[0].items():
        if key != "active":
            assert torch.equal(value[::2], metrics[1][key][::2])


@ALL
def test_weights_that_overflow_freeze_the_member_with_finite_ones(name):
    healthy, sick = build(name), build(name)
    state = sick.networks["critic" if "critic" in sick.networks else "actor"].frozen
    count = state.weights[-1].shape[0] // 3
    state.weights[-1][count : 2 * count] = 1e38
    rollout = history(healthy, 3 * HORIZON)
    train(healthy, rollout)
    train(sick, rollout)
    assert sick.active.tolist() == [True, False, True]
    assert finite(sick, 1)
    assert same_state(sick, 0, healthy, 0)
    assert same_state(sick, 2, healthy, 2)


def test_a_broken_actor_freezes_its_member_before_the_temperature_moves():
    algorithm = build("sac")
    set_outputs(algorithm.critic.frozen, [[1.0]] * 6)
    algorithm.policy.frozen.weights[0][1] = torch.nan
    before = algorithm.temperature.log.clone()
    with torch.no_grad():
        algorithm.learn(make_batch(algorithm))
    assert algorithm.active.tolist() == [True, False, True]
    assert torch.equal(algorithm.temperature.log[1], before[1])
    assert (algorithm.temperature.log[::2] != before[::2]).all()


@ALL
def test_a_frozen_member_comes_back_with_a_healthy_ones_state(name):
    algorithm = build(name, alike=True)
    rollout = history(algorithm, 6 * HORIZON)
    algorithm.update(with_reward(cut(rollout, 0, HORIZON), 1, torch.inf))
    assert algorithm.active.tolist() == [True, False, True]
    parent = algorithm.member_state(0)
    algorithm.load_member_state(1, {group: parent[group] for group in parent if group != "random"})
    assert algorithm.active.all()
    before = weights(algorithm, 1)
    for start in range(HORIZON, 6 * HORIZON, HORIZON):
        algorithm.update(cut(rollout, start, start + HORIZON))
    # The infinite rewards are still in its own replay for a while; a member that draws one is
    # frozen again, and finite.
    assert finite(algorithm, 1)
    assert algorithm.active[::2].all()
    assert not torch.equal(weights(algorithm, 0), before)


@ALL
def test_bad_observations_do_not_reach_another_member(name):
    healthy = build(name, normalize_observations=True)
    sick = build(name, normalize_observations=True)
    rollout = history(healthy, HORIZON)
    bad = select(rollout, 0, 1, 2)
    bad.observation[2, 1, 3] = torch.nan
    healthy.update(rollout)
    sick.update(bad)
    assert same_state(sick, 0, healthy, 0)
    assert same_state(sick, 2, healthy, 2)
    assert finite(sick, 1)


@pytest.mark.parametrize(
    ("name", "replay"), [("sac", "shared"), ("dqn", "shared"), ("sac", "mixed")]
)
def test_what_breaks_in_one_member_reaches_no_other_through_shared_replay(name, replay):
    algorithm = build(name, replay=replay)
    rollout = with_reward(history(algorithm, 4 * HORIZON), 1, torch.inf)
    rollout.valid[:, 2] = False
    if rollout.action.is_floating_point():
        rollout.action[:, 2] = torch.nan
    rollout.observation[3, 2] = torch.inf
    train(algorithm, rollout)
    assert algorithm.active.all()
    assert all(finite(algorithm, member) for member in range(3))


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_row_that_is_not_valid_may_hold_anything(name):
    algorithm = build(name)
    rollout = history(algorithm, 4 * HORIZON)
    rollout.valid[3, 1], rollout.truncated[3, 1] = False, True
    rollout.action[3, 1], rollout.reward[3, 1] = torch.nan, torch.nan
    rollout.final_observation[3, 1] = torch.inf
    train(algorithm, rollout)
    assert algorithm.active.all()
