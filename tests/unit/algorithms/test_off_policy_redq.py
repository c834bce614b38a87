"""REDQ: which critics give a target, what the actor climbs, and how seldom."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from podracer_core.errors import InvalidInput
from support.errors import raises
from support.off_policy import ROWS, build, history, make_batch, set_outputs, train

CRITICS = 5


def redq(*members: int, **shared: Any) -> Any:
    return build("redq", *members, **{"ensemble_size": CRITICS, "subset_size": 2} | shared)


def subsets(algorithm: Any) -> list[set[int]]:
    """Which critics give the target of each member in this gradient step: those whose zero is seen
    among ones."""
    seen: list[set[int]] = [set() for _ in range(algorithm.members)]
    for critic in range(CRITICS):
        values = torch.ones(algorithm.members, CRITICS, ROWS)
        values[:, critic] = 0.0
        least = algorithm.pessimistic(values)
        assert least.shape == (algorithm.members, ROWS)
        assert (least == least[:, :1]).all()  # one subset for the whole batch
        for member in (least[:, 0] == 0).nonzero().flatten().tolist():
            seen[member].add(critic)
    return seen


@pytest.mark.parametrize("size", [1, 2, 3, CRITICS])
def test_every_subset_has_the_right_size_and_every_choice_comes_up(size):
    algorithm = redq(subset_size=size)
    found = []
    for _ in range(300):
        found.append(subsets(algorithm))
        algorithm._streams.count += 1
    assert all(len(subset) == size for step in found for subset in step)
    choices = [frozenset(choice) for choice in itertools.combinations(range(CRITICS), size)]
    for member in range(3):
        own = [frozenset(step[member]) for step in found]
        # 30 of 300 for each of ten choices: fewer than 12 would be a rare accident
        assert all(own.count(choice) > 0.4 * 300 / len(choices) for choice in choices)
    if size < CRITICS:
        assert any(step[0] != step[1] for step in found)
        assert any(before[0] != after[0] for before, after in itertools.pairwise(found))


def test_a_members_subsets_do_not_depend_on_its_company():
    trio, single = redq(), redq(1)
    for _ in range(20):
        assert subsets(trio)[1] == subsets(single)[0]
        trio._streams.count += 1
        single._streams.count += 1


def test_the_target_is_the_subsets_least_value_with_the_entropy():
    algorithm = redq()
    values = torch.tensor([[5.0], [1.0], [4.0], [2.0], [3.0]])
    set_outputs(algorithm.critic.target, values.repeat(3, 1).tolist())
    algorithm.temperature.log.fill_(-40.0)  # next to no entropy
    batch = make_batch(algorithm)
    for _ in range(5):
        least = torch.tensor(
            [min(values[critic, 0].item() for critic in subset) for subset in subsets(algorithm)]
        )
        with torch.no_grad():
            _, target = algorithm.learn_critic(batch, torch.zeros(3, ROWS, 2))
        torch.testing.assert_close(
            target, batch.reward + batch.discount * least.unsqueeze(1), rtol=1e-5, atol=1e-5
        )
        algorithm._streams.count += 1


def test_the_actor_climbs_the_mean_of_all_critics():
    algorithm = redq(alike=True, learning_rate=1e-7)
    set_outputs(algorithm.critic.frozen, [[1.0], [2.0], [6.0], [0.0], [-4.0]] * 2 + [[10.0]] * 5)
    _, value, _ = algorithm.learn_actor(make_batch(algorithm), torch.zeros(3, ROWS, 2))
    torch.testing.assert_close(value, torch.tensor([1.0, 1.0, 10.0]), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("updates_per_step", "interval"), [(20.0, 20), (3.0, 3), (1.0, 1), (0.25, 1)]
)
def test_the_actor_takes_one_step_after_every_g_of_the_critics(updates_per_step, interval):
    algorithm = redq(updates_per_step=updates_per_step, horizon=1)
    for step in range(1, 2 * interval + 2):
        with torch.no_grad():
            algorithm.learn(make_batch(algorithm, seed=step))
        algorithm.gradient_steps += 1
        assert algorithm.optimizers["critic"].step_count.tolist() == [step] * 3
        assert algorithm.optimizers["actor"].step_count.tolist() == [step // interval] * 3
        assert algorithm.optimizers["temperature"].step_count.tolist() == [step // interval] * 3


def test_twenty_gradient_steps_for_each_transition_and_one_of_the_actor():
    algorithm = redq(updates_per_step=20.0, horizon=1)
    train(algorithm, history(algorithm, 2, envs=1))
    assert algorithm.optimizers["critic"].step_count.tolist() == [40] * 3
    assert algorithm.optimizers["actor"].step_count.tolist() == [2] * 3


def test_a_subset_larger_than_the_ensemble_is_refused():
    with raises(InvalidInput, field="subset_size"):
        redq(subset_size=6)
