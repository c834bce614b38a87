"""Policies that follow action values: what is greedy, what is random, and what masks forbid."""

from __future__ import annotations

import gymnasium
import pytest
import torch

from podracer_core.errors import InvalidInput
from podracer_core.networks import ValueHead
from podracer_core.random_numbers import action_keys

MEMBERS, ACTIONS, SAMPLES = 3, 5, 20_000
SPACE = gymnasium.spaces.Discrete(ACTIONS)


def sample(output: torch.Tensor, fractions: list[float]) -> torch.Tensor:
    """output [M, n] -> actions [M, SAMPLES]"""
    head = ValueHead(SPACE, dueling=False)
    noise = head.draw_noise(
        action_keys(torch.arange(MEMBERS), SAMPLES), torch.zeros(MEMBERS).long(), 1
    )[0]
    rows = output.unsqueeze(1).expand(-1, SAMPLES, -1)
    action, log_prob = head.sample(
        rows, {"random_fraction": torch.tensor(fractions).view(-1, 1)}, noise, rows
    )
    assert log_prob.shape == action.shape == (MEMBERS, SAMPLES)
    return action


def frequencies(action: torch.Tensor) -> torch.Tensor:
    return torch.stack([(action == choice).float().mean(1) for choice in range(ACTIONS)], -1)


def test_dueling_values_by_hand():
    # V = 10, A = 1, 2, 6 with the mean 3: Q = 8, 9, 13
    head = ValueHead(gymnasium.spaces.Discrete(3), dueling=True)
    assert head.output_size == 4
    assert head.values(torch.tensor([10.0, 1.0, 2.0, 6.0])).tolist() == [8.0, 9.0, 13.0]


def test_several_networks_count_as_their_smallest_value():
    head = ValueHead(gymnasium.spaces.Discrete(2), dueling=False)
    # [M, N, B, n]
    outputs = torch.tensor([[[[1.0, 5.0]], [[2.0, 0.0]]], [[[3.0, 4.0]], [[9.0, 8.0]]]])
    combined = head.combine(outputs)
    assert combined.tolist() == [[[1.0, 0.0]], [[3.0, 4.0]]]
    assert head.mode(combined).tolist() == [[0], [1]]


def test_a_share_of_the_actions_is_evenly_random():
    values = torch.tensor([[0.0, 1.0, 3.0, 2.0, -1.0]]).expand(MEMBERS, -1)
    found = frequencies(sample(values, [0.0, 0.25, 1.0]))
    greedy = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0])
    expected = torch.stack([greedy, 0.75 * greedy + 0.05, torch.full((ACTIONS,), 0.2)])
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01)


def test_random_actions_are_evenly_drawn_from_the_allowed_ones():
    mask = torch.tensor([[1, 0, 1, 0, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]]).bool()
    values = ValueHead(SPACE, dueling=False).allow(
        torch.tensor([0.0, 9.0, 1.0, 9.0, 2.0]).expand(MEMBERS, -1), mask
    )
    expected = mask / mask.sum(-1, keepdim=True)
    torch.testing.assert_close(frequencies(sample(values, [1.0] * 3)), expected, rtol=0, atol=0.015)
    assert sample(values, [0.0] * 3)[:, 0].tolist() == [4, 4, 1]


def test_the_greedy_module_chooses_alike_and_adds_the_start():
    torch.manual_seed(0)
    for dueling in (False, True):
        head = ValueHead(gymnasium.spaces.Discrete(4, start=2), dueling=dueling)
        outputs = torch.randn(1, 3, 11, head.output_size)  # one member, three networks
        module = head.greedy_module()
        assert torch.equal(module(outputs[0]), head.mode(head.combine(outputs))[0] + 2)
        assert torch.equal(module(outputs[0, 0]), head.mode(head.combine(outputs[:, :1]))[0] + 2)


def test_other_spaces_are_refused():
    with pytest.raises(InvalidInput, match="Discrete"):
        ValueHead(gymnasium.spaces.Box(-1, 1, (2,)), dueling=False)
