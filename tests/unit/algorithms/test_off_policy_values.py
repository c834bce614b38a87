"""The targets of DQN and its variants by hand: networks that answer known numbers to everything."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch

from podracer_core.algorithms import Batch, algorithm_class, squared_error
from podracer_core.errors import InvalidInput
from support.errors import raises
from support.off_policy import MEMBERS, ROWS, build, make_batch, set_outputs

# Two agents. Q of the learned network for the actions 0 … 4, and of the target network.
LEARNED = [[1.0, 2.0, 9.0, 0.0, 0.0], [0.0, 0.0, 0.0, 7.0, 1.0]]
TARGET = [[4.0, 6.0, 5.0, 0.0, 0.0], [8.0, 0.0, 0.0, 2.0, 0.0]]


def batch_by_hand(algorithm: Any) -> Batch:
    """Three transitions: reward 0.5, 1, 2; after the second nothing follows; of the third nothing
    is known."""
    batch = make_batch(algorithm, 3)
    batch.reward.copy_(torch.tensor([0.5, 1.0, 2.0]).expand(2, -1))
    batch.discount.copy_(torch.tensor([0.9, 0.0, 0.9]).expand(2, -1))
    batch.action.copy_(torch.tensor([[1, 0, 2], [3, 4, 2]]))
    batch.weight.copy_(torch.tensor([0.5, 0.5, 0.0]).expand(2, -1))
    return batch


def learn(
    name: str, learned: list[list[float]], target: list[list[float]], **shared: Any
) -> dict[str, list[float]]:
    algorithm = build(name, 0, 1, **shared)
    set_outputs(algorithm.policy.frozen, learned)
    set_outputs(algorithm.policy.target, target)
    with torch.no_grad():
        metrics = algorithm.learn(batch_by_hand(algorithm))
    return {key: value.tolist() for key, value in zip(algorithm.metrics, metrics, strict=True)}


def test_dqn_takes_the_best_value_of_the_target_network():
    metrics = learn("dqn", LEARNED, TARGET)
    # Agent 0: 0.5 + 0.9 * 6 = 5.9 against Q(1) = 2, and 1 against Q(0) = 1.
    # Agent 1: 0.5 + 0.9 * 8 = 7.7 against Q(3) = 7, and 1 against Q(4) = 1.
    assert metrics["critic_loss"] == pytest.approx(
        [0.5 * 0.5 * 3.9**2, 0.5 * 0.5 * 0.7**2], rel=1e-5
    )
    assert metrics["value"] == pytest.approx([(2 + 1) / 2, (7 + 1) / 2])


def test_double_dqn_asks_the_target_network_about_the_learned_ones_choice():
    metrics = learn("double_dqn", LEARNED, TARGET)
    # The learned networks prefer 2 and 3, worth 5 and 2 to the others: 0.5 + 0.9 * 5 = 5 and 0.5 +
    # 0.9 * 2 = 2.3.
    assert metrics["critic_loss"] == pytest.approx(
        [0.5 * 0.5 * 3.0**2, 0.5 * 0.5 * 4.7**2], rel=1e-5
    )


# V and A of the dueling networks; Q = V + A - mean A
# Q: 6, 1, 1, 1, 1 and -1, -1, -1, 9, -1
DUELING = [[2.0, 5.0, 0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 10.0, 0.0]]
# 2, 7, 4, 1, 1 and 3, 8, 3, 3, 3
DUELING_TARGET = [[3.0, 1.0, 6.0, 3.0, 0.0, 0.0], [4.0, 0.0, 5.0, 0.0, 0.0, 0.0]]


def test_dueling_dqn_subtracts_the_mean_advantage():
    metrics = learn("dueling_dqn", DUELING, DUELING_TARGET)
    # Agent 0: 0.5 + 0.9 * 7 = 6.8 against Q(1) = 1, 1 against Q(0) = 6; agent 1: 7.7 against Q(3) =
    # 9, 1 against -1.
    losses = [0.25 * (5.8**2 + 5.0**2), 0.25 * (1.3**2 + 2.0**2)]
    assert metrics["critic_loss"] == pytest.approx(losses, rel=1e-5)
    assert metrics["value"] == pytest.approx([(1 + 6) / 2, (9 - 1) / 2])


def test_d3qn_does_both():
    metrics = learn("d3qn", DUELING, DUELING_TARGET)
    # The learned networks prefer 0 and 3, worth 2 and 3 to the others: 2.3 and 3.2.
    losses = [0.25 * (1.3**2 + 5.0**2), 0.25 * (5.8**2 + 2.0**2)]
    assert metrics["critic_loss"] == pytest.approx(losses, rel=1e-5)


# Two networks for each agent, agent 0's first
PAIR = [[1.0, 2.0, 9.0, 0.0, 0.0], [3.0, 4.0, 1.0, 0.0, 0.0], [0.0] * 5, [0.0, 0.0, 0.0, 1.0, 2.0]]
PAIR_TARGET = [
    [4.0, 6.0, 5.0, 0.0, 0.0],
    [5.0, 3.0, 9.0, 0.0, 0.0],
    [1.0] * 5,
    [0.0, 0.0, 0.0, 0.0, 3.0],
]


def test_an_ensemble_bootstraps_from_the_best_of_the_smallest_values():
    metrics = learn("dqn", PAIR, PAIR_TARGET, ensemble_size=2)
    # The smallest target values: 4, 3, 5, 0, 0 and 0, 0, 0, 0, 1; the best 5 and 1: targets 5 and
    # 1.4, and 1. Every network learns: Q(1), Q(0) = (2, 4), (1, 3) and Q(3), Q(4) = (0, 1), (0, 2).
    losses = [0.25 * (3**2 + 1**2 + 0**2 + 2**2), 0.25 * (1.4**2 + 0.4**2 + 1**2 + 1**2)]
    assert metrics["critic_loss"] == pytest.approx(losses, rel=1e-5)
    assert metrics["value"] == pytest.approx([(2 + 4 + 1 + 3) / 4, (0 + 1 + 0 + 2) / 4])


def test_a_double_ensemble_chooses_by_the_smallest_learned_values():
    metrics = learn("double_dqn", PAIR, PAIR_TARGET, ensemble_size=2)
    # The smallest learned values: 1, 2, 1, 0, 0 and 0, 0, 0, 0, 0; their best 1 and (the first of
    # equals) 0, of which the smallest target values are 3 and 0: 0.5 + 0.9 * 3 = 3.2 and 0.5.
    losses = [0.25 * (1.2**2 + 0.8**2 + 0**2 + 2**2), 0.25 * (0.5**2 + 0.5**2 + 1**2 + 1**2)]
    assert metrics["critic_loss"] == pytest.approx(losses, rel=1e-5)


def test_actions_follow_the_smallest_values_of_an_ensemble():
    algorithm = build("dqn", 0, 1, ensemble_size=2)
    set_outputs(algorithm.policy.frozen, PAIR)
    greedy = algorithm.actor.greedy(torch.randn(2, 3, 6))
    assert greedy.tolist() == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("interval", [1, 3])
def test_the_target_network_follows_every_few_steps(interval):
    algorithm = build("dqn", target_interval=interval)
    target = algorithm.policy.member_state(0)["target.layers.0.weight"]
    for step in range(1, 7):
        with torch.no_grad():
            algorithm.learn(make_batch(algorithm))
        algorithm.gradient_steps += 1
        state = algorithm.policy.member_state(0)
        if step % interval == 0:
            target = target + 0.1 * (state["layers.0.weight"] - target)
        torch.testing.assert_close(state["target.layers.0.weight"], target)


def test_an_error_is_half_a_square_and_its_slope_is_what_autograd_finds():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(MEMBERS, 2, ROWS, generator=generator).requires_grad_()
    target, weight = torch.randn(2, MEMBERS, ROWS, generator=generator).unbind()
    loss, slope, size = squared_error(values, target, weight.abs())
    plain = torch.stack(
        [
            0.5 * (weight[m].abs() * (values[m, n] - target[m]) ** 2).sum()
            for m in range(MEMBERS)
            for n in range(2)
        ]
    )
    torch.testing.assert_close(loss, plain.view(MEMBERS, 2).sum(1))
    (expected,) = torch.autograd.grad(plain.sum(), values)
    torch.testing.assert_close(slope, expected)
    torch.testing.assert_close(size, (values.detach() - target.unsqueeze(1)).abs().mean(1))
    assert not loss.requires_grad


def test_nothing_broadcasts_into_an_error():
    values, rows = torch.zeros(MEMBERS, 2, ROWS), torch.zeros(MEMBERS, ROWS)
    squared_error(values, rows, rows)
    for other in (rows.unsqueeze(2), rows.unsqueeze(1), rows[:1], rows[:, :1], rows[0], rows.t()):
        with pytest.raises(InvalidInput, match="fit"):
            squared_error(values, other, rows)
        with pytest.raises(InvalidInput, match="fit"):
            squared_error(values, rows, other)


def test_other_action_spaces_are_refused():
    box = gymnasium.spaces.Box(-1, 1, (2,))
    for name in ("dqn", "double_dqn", "dueling_dqn", "d3qn", "discrete_sac"):
        with raises(InvalidInput, "ACTION_SPACE_UNSUPPORTED", match="Discrete"):
            algorithm_class(name)(build("dqn").cohort, box, box)
