"""How much an off-policy algorithm explores and learns, by the transitions that each member has
taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from podracer_core.buffers import Replay
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import replay_keys
from support.off_policy import (
    CONTINUOUS,
    EVERY,
    ROWS,
    VALUE_BASED,
    build,
    cut,
    history,
    pieces,
    train,
)

ALL = pytest.mark.parametrize("name", EVERY)
QUICK = {"hidden_sizes": (4,), "batch_size": 3, "replay_capacity": 4000}


def fraction(algorithm: Any) -> list[float]:
    """Share of random actions, as the actor has it now."""
    return algorithm.actor.settings["random_fraction"][:, 0].tolist()


@ALL
def test_learning_starts_exactly_after_so_many_transitions(name):
    # 2 transitions of each member in a rollout: the fifth completes 10, the sixth 11.
    for starts, rollouts in ((0, 1), (1, 1), (10, 5), (11, 6)):
        algorithm = build(name, learning_starts=starts, horizon=1, updates_per_step=1.0, **QUICK)
        rollout = history(algorithm, 8, envs=2)
        for count, part in enumerate(pieces(rollout, 1), 1):
            metrics = algorithm.update(part)
            assert algorithm.gradient_steps == 2 * max(0, count - rollouts + 1)
            assert bool(metrics["critic_loss"].isnan().all()) == (count < rollouts)
            assert algorithm.update_count.tolist() == [algorithm.gradient_steps] * 3


@pytest.mark.parametrize("name", CONTINUOUS)
def test_actions_are_random_until_learning_starts(name):
    algorithm = build(name, learning_starts=10, horizon=1, **QUICK)
    assert fraction(algorithm) == [1.0] * 3
    for count, part in enumerate(pieces(history(algorithm, 7, envs=2), 1), 1):
        algorithm.update(part)
        assert fraction(algorithm) == [float(2 * count < 10)] * 3
    assert fraction(build(name)) == [0.0] * 3  # where learning starts at once


@pytest.mark.parametrize("name", VALUE_BASED)
def test_exploration_falls_to_each_members_share(name):
    algorithm = build(
        name, learning_starts=10, exploration_steps=20, horizon=1, updates_per_step=0.01, **QUICK
    )
    assert fraction(algorithm) == [1.0] * 3
    for count, part in enumerate(pieces(history(algorithm, 20, envs=2), 1), 1):
        algorithm.update(part)
        progress = min(max(0.0, (2 * count - 10) / 20), 1.0)
        # From 1 to final_exploration, which is 0.1, 0 and 0.5
        assert fraction(algorithm) == pytest.approx(
            [1 - 0.9 * progress, 1 - progress, 1 - 0.5 * progress], abs=1e-6
        )
    assert fraction(algorithm) == pytest.approx([0.1, 0.0, 0.5])
    algorithm.set_hyperparameters(1, {"final_exploration": 0.3})
    assert fraction(algorithm) == pytest.approx([0.1, 0.3, 0.5])


def test_the_schedule_goes_by_the_members_own_transitions_that_count():
    algorithm = build("dqn", exploration_steps=20, **QUICK)
    rollout = history(algorithm, 5, envs=2)
    rollout.valid[:, 1, 0] = False
    algorithm.update(rollout)
    assert fraction(algorithm) == pytest.approx([1 - 0.9 / 2, 1 - 1 / 4, 1 - 0.5 / 2])
    other = build("dqn", exploration_steps=20, **QUICK)
    other.load_member_state(2, algorithm.member_state(1))
    assert fraction(other) == pytest.approx([1.0, 1.0, 1 - 0.5 / 4])


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_the_noise_of_deterministic_actors_is_each_members(name):
    algorithm = build(name)
    assert algorithm.actor.settings["noise_scale"][:, 0].tolist() == pytest.approx([0.1, 0.3, 0.0])
    algorithm.set_hyperparameters(2, {"noise_scale": 0.7})
    assert algorithm.actor.settings["noise_scale"][:, 0].tolist() == pytest.approx([0.1, 0.3, 0.7])


@pytest.mark.parametrize(
    ("updates_per_step", "horizon", "envs"),
    [(0.25, 1, 1), (0.25, 1, 3), (1.5, 1, 1), (1.5, 1, 3), (0.375, 3, 5), (20, 1, 1)],
)
def test_gradient_steps_keep_the_pace_and_owe_what_is_left(updates_per_step, horizon, envs):
    algorithm = build(
        "dqn", updates_per_step=updates_per_step, horizon=horizon, learning_starts=8, **QUICK
    )
    transitions = learned_from = 0
    for part in pieces(history(algorithm, 24 * horizon, envs=envs), horizon):
        algorithm.update(part)
        transitions += horizon * envs
        # From the rollout on that completes the eighth transition, every one counts.
        learned_from += horizon * envs if transitions >= 8 else 0
        assert algorithm.gradient_steps == int(learned_from * updates_per_step)


def test_a_pace_that_no_binary_number_hits_is_kept_within_one_step():
    algorithm = build("dqn", updates_per_step=0.1, horizon=1, **QUICK)
    for count, part in enumerate(pieces(history(algorithm, 100, envs=1), 1), 1):
        algorithm.update(part)
        assert abs(algorithm.gradient_steps - count / 10) <= 1
    assert algorithm.gradient_steps in (9, 10)


def test_no_buffer_is_too_small_to_start_learning():
    """A ring that holds fewer transitions than learning waits for must not wait for ever."""
    algorithm = build("dqn", learning_starts=40, horizon=1, **QUICK | {"replay_capacity": 20})
    train(algorithm, history(algorithm, 30, envs=2))
    assert algorithm.gradient_steps > 0


def test_metrics_are_means_over_the_gradient_steps():
    whole, single = build("dqn", updates_per_step=0.1), build("dqn", updates_per_step=0.05)
    rollout = history(whole, 5)
    single.update(rollout)
    second = build("dqn", updates_per_step=0.05)
    for member in range(3):
        second.load_member_state(member, single.member_state(member))
    both = whole.update(rollout)
    losses = [
        build("dqn", updates_per_step=0.05).update(rollout)["critic_loss"],
        second.update(rollout)["critic_loss"],
    ]
    torch.testing.assert_close(
        both["critic_loss"], torch.stack(losses).mean(0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("steps", [2, 16, 17, 40])
def test_batches_are_the_same_however_many_are_drawn_at_once(steps):
    algorithm = build("sac", updates_per_step=steps / 20)
    seen: list[torch.Tensor] = []
    learn = algorithm.learn
    algorithm.learn = lambda batch: seen.append(batch.reward.clone()) or learn(batch)
    algorithm.update(history(algorithm, 5))
    assert len(seen) == steps
    assert algorithm.replay is not None
    counter = torch.zeros(3, dtype=torch.int64)
    gamma = algorithm.hyperparameters["gamma"]
    for number, reward in enumerate(seen):
        alone = algorithm.replay.sample(
            7, replay_keys(algorithm.seeds), counter + 7 * number, gamma
        )
        assert torch.equal(alone.reward, reward)


def test_batches_are_normalized_as_the_actor_sees_them():
    algorithm = build("sac", normalize_observations=True)
    rollout = history(algorithm, 10)
    rollout.observation.mul_(3).add_(5)
    rollout.final_observation.mul_(3).add_(5)
    train(algorithm, rollout)
    replay, actor = algorithm.replay, algorithm.actor
    assert (actor.mean - 5).abs().max() < 2
    assert (actor.scale - 3).abs().max() < 2
    drawn = replay.sample(
        7,
        replay_keys(algorithm.seeds),
        algorithm.update_count * 7,
        algorithm.hyperparameters["gamma"],
    )
    (batch,) = algorithm.batches(1)
    for name in ("observation", "next_observation"):
        expected = ((getattr(drawn, name) - actor.mean) / actor.scale).clamp(-10, 10)
        torch.testing.assert_close(getattr(batch, name), expected)
    assert torch.equal(batch.reward, drawn.reward)
    assert torch.equal(batch.action, drawn.action)


# Prioritized replay


def test_priorities_are_the_members_errors_to_the_power_of_its_exponent():
    """p = |error| + 1e-6, P ~ p^alpha (Schaul et al., 2016, section 3.3)."""
    algorithm = build("sac", prioritized=True, learning_starts=1000)
    for member, exponent in enumerate((0.0, 0.6, 1.0)):
        algorithm.set_hyperparameters(member, {"priority_exponent": exponent})
    algorithm.update(history(algorithm, 5))
    replay = algorithm.replay
    assert isinstance(replay, Replay)
    assert replay.priorities is not None
    everything = torch.arange(20).expand(3, -1)  # 5 rows of 4 environments
    row, environment = everything // 4, everything % 4
    place = (row * 3 + torch.arange(3).view(-1, 1)) * 4 + environment
    error = torch.rand(3, 20, generator=torch.Generator().manual_seed(0)) - 0.5
    error[:, 3] = 0.0
    with torch.no_grad():
        batch = replace(next(algorithm.batches(1)), place=place, weight=torch.ones(3, 20))
        algorithm.set_priorities(batch, error)
    part = (torch.arange(4000) + 0.5) / 4000
    leaf, probability = replay.priorities.find(part.expand(3, -1))
    priority = (error.abs() + 1e-6).pow(torch.tensor([[0.0], [0.6], [1.0]]))
    expected = (priority / priority.sum(1, keepdim=True)).gather(1, leaf)
    torch.testing.assert_close(probability, expected, rtol=1e-4, atol=1e-7)
    assert 3 in leaf[0]
    assert 3 not in leaf[2]
    # Where there is no error at all, everything comes up alike.
    with torch.no_grad():
        algorithm.set_priorities(batch, torch.zeros(3, 20))
    leaf, probability = replay.priorities.find((torch.arange(20) + 0.5).expand(3, -1) / 20)
    torch.testing.assert_close(probability, torch.full((3, 20), 0.05))
    assert leaf.tolist() == [list(range(20))] * 3


def test_transitions_without_weight_are_not_drawn_again():
    """As where a window of n steps meets a row whose successor was lost."""
    algorithm = build("sac", prioritized=True, learning_starts=1000)
    algorithm.update(history(algorithm, 5))
    with torch.no_grad():
        batch = next(algorithm.batches(1))
        lost = batch.place == batch.place[:, :1]
        weight = torch.where(lost, 0.0, batch.weight)
        algorithm.set_priorities(
            replace(batch, weight=weight), torch.full((3, ROWS), 9.0).where(lost, 1.0)
        )
    drawn = next(algorithm.batches(1)).place
    assert not (drawn == batch.place[:, :1]).any()
    greatest = algorithm.replay.priorities.member_state(0, drawn[0])["greatest_priority"]
    # the error of what is lost does not count for new ones
    assert greatest == pytest.approx(1.0, abs=1e-5)


# its errors have a bound
@pytest.mark.parametrize("name", [name for name in EVERY if name != "flash_sac"])
def test_what_was_learned_from_comes_again_by_its_error(name):
    """One transition has a reward beyond everything; after a look at it, it comes up nearly
    always."""
    algorithm = build(name, prioritized=True, alike=True, learning_rate=1e-7, updates_per_step=2.0)
    rollout = history(algorithm, 5)
    rollout.reward[2, :, 1] = 1000.0
    algorithm.update(rollout)
    batch = next(algorithm.batches(1))
    assert ((batch.reward == 1000).float().mean(1) > 0.6).all()
    # So its weight is small: the largest of the batch belongs to what came up against the odds.
    own = batch.weight.masked_fill(batch.reward != 1000, 0).amax(1)
    assert (own <= batch.weight.amax(1)).all()


def test_the_importance_exponent_grows_to_one():
    algorithm = build("dqn", prioritized=True, importance_steps=40, alike=True)
    algorithm.set_hyperparameters(1, {"importance_exponent": 0.0})
    rollout = history(algorithm, 15)
    seen: list[list[float]] = []
    sample = Replay.sample_prioritized

    def watched(replay: Replay, *arguments: Any) -> Any:
        seen.append(arguments[-1].tolist())
        return sample(replay, *arguments)

    algorithm.update(cut(rollout, 0, 5))
    assert algorithm.replay is not None
    algorithm.replay.sample_prioritized = watched.__get__(algorithm.replay)
    algorithm.update(cut(rollout, 5, 10))  # 40 transitions
    assert seen[-1] == [1.0, 1.0, 1.0]
    algorithm._progress.transitions.copy_(torch.tensor([0, 20, 10]))
    list(algorithm.batches(1))
    assert seen[-1] == pytest.approx([0.4, 0.5, 0.4 + 0.6 * 0.25])


def test_weights_add_up_to_one_without_priorities_also_where_rows_are_not_valid():
    algorithm = build("dqn", learning_starts=1000)
    rollout = history(algorithm, 5)
    rollout.valid[1:3, 0] = False
    algorithm.update(rollout)
    for batch in algorithm.batches(10):
        torch.testing.assert_close(batch.weight.sum(1), torch.ones(3))
        assert (batch.weight[1:] == 1 / 7).all()


@ALL
def test_rows_that_are_not_valid_leave_every_loss(name):
    def trained(garbage: float) -> Any:
        algorithm = build(name)
        rollout = history(algorithm, 10)
        rollout.valid[2:4, 1] = rollout.valid[9, 0, 3] = False
        rollout.truncated[~rollout.valid] = True
        rollout.reward[~rollout.valid] = garbage
        rollout.final_observation[~rollout.valid] = garbage
        return train(algorithm, rollout)

    clean, dirty = trained(0.0), trained(1e6)
    assert clean.active.all()
    for member in range(3):
        for network in clean.networks:
            mine, other = (each.networks[network].member_state(member) for each in (clean, dirty))
            assert all(torch.equal(mine[key], other[key]) for key in mine)


def test_all_members_wait_for_the_one_with_the_fewest_transitions():
    full = build("dqn", learning_starts=20)
    full.update(history(full, 8))
    algorithm = build("dqn", learning_starts=20, updates_per_step=1.0)
    algorithm.load_replay_states([full.replay_state(0), None, full.replay_state(2)])
    assert algorithm.replay_state(0)["reward"].shape == (8, 4), (
        "it has them before the first rollout too"
    )
    assert algorithm.replay_state(1) == {}
    for start in range(0, 10, 2):
        algorithm.update(cut(history(algorithm, 10, seed=1), start, start + 2))
        # 2 steps in 4 environments each time: the third update completes 20 of member 1's own.
        assert (algorithm.gradient_steps > 0) == (start >= 4)


def test_transitions_come_before_the_first_rollout_or_never():
    algorithm = build("dqn")
    with pytest.raises(InvalidInput, match="of 3 members"):
        algorithm.load_replay_states([None])
    algorithm.update(history(algorithm, 5))
    with pytest.raises(InvalidInput, match="first rollout"):
        algorithm.load_replay_states([None, None, None])
