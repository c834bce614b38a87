"""Exploration noise: every number alone is standard normal, and over time they hang together as the
formulas say."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
import torch

from podracer_core.networks import Exploration, ExplorationKind
from podracer_core.networks import box_heads as exploration_module
from podracer_core.random_numbers import action_keys, normal

MEMBERS, ENVS, OBSERVATIONS, ACTIONS, PERIOD = 3, 4, 5, 2, 6
KINDS = get_args(ExplorationKind)
EVERY = pytest.mark.parametrize("kind", KINDS)


def make(kind: str) -> Exploration:
    return Exploration(kind, PERIOD, OBSERVATIONS, ACTIONS)  # type: ignore[arg-type]


def draw(kind: str, envs: int, first: list[int], horizon: int) -> torch.Tensor:
    return make(kind).draw(
        action_keys(torch.arange(len(first)), envs), torch.tensor(first), horizon
    )


@EVERY
def test_each_number_is_standard_normal(kind):
    exploration = make(kind)
    envs, horizon = 2000, 3
    noise = draw(kind, envs, [0, 50], horizon)
    assert noise.shape == (horizon, 2, envs, exploration.size)
    observation = torch.randn(2, envs, OBSERVATIONS, generator=torch.Generator().manual_seed(0))
    for row in noise:
        numbers = exploration.shape(row, observation)
        assert numbers.shape == (2, envs, ACTIONS)
        torch.testing.assert_close(numbers.mean(1), torch.zeros(2, ACTIONS), rtol=0, atol=0.08)
        torch.testing.assert_close(numbers.var(1), torch.ones(2, ACTIONS), rtol=0, atol=0.12)
        # Kurtosis 3: a sum that is not normal would show here.
        torch.testing.assert_close(
            numbers.pow(4).mean(1), torch.full((2, ACTIONS), 3.0), rtol=0, atol=0.6
        )
        assert torch.corrcoef(numbers[0].t())[0, 1].abs() < 0.08


@EVERY
def test_the_same_numbers_whatever_the_horizon_is_split_into(kind):
    first = [0, 5, 40]
    whole = draw(kind, ENVS, first, 15)
    parts = [
        draw(kind, ENVS, [step + start for step in first], size)
        for start, size in ((0, 1), (1, 6), (7, 8))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-6)


@EVERY
def test_members_and_environments_have_numbers_of_their_own(kind):
    noise = draw(kind, ENVS, [0, 0, 0], 1)[0]
    assert noise.flatten().unique().numel() == noise.numel()
    alone = make(kind).draw(action_keys(torch.tensor([1]), ENVS), torch.tensor([0]), 1)[0]
    torch.testing.assert_close(alone[0], noise[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lag", [1, PERIOD, 3 * PERIOD])
def test_correlated_noise_forgets_at_the_rate_of_its_period(lag):
    noise = draw("correlated", 20_000, [7], lag + 1)[:, 0]  # [T, E, A]
    measured = (noise[0] * noise[lag]).mean(0)
    # Weights d^k of the last L steps, d = exp(-1 / period): sum of d^k d^(k + lag), divided by that
    # of d^2k.
    decay, length = math.exp(-1 / PERIOD), math.ceil(PERIOD * math.log(1000.0))
    expected = decay**lag * (1 - decay ** (2 * (length - lag))) / (1 - decay ** (2 * length))
    assert abs(expected - math.exp(-lag / PERIOD)) < 1e-3
    torch.testing.assert_close(measured, torch.full((ACTIONS,), expected), rtol=0, atol=0.03)


def test_independent_noise_has_no_memory():
    noise = draw("independent", 20_000, [7], 2)[:, 0]
    assert (noise[0] * noise[1]).mean(0).abs().max() < 0.03


def test_the_same_state_gets_the_same_noise_within_a_period_and_another_one_after():
    exploration = make("state_dependent")
    noise = draw("state_dependent", ENVS, [0, 4], 2 * PERIOD)
    observation = torch.randn(2, ENVS, OBSERVATIONS)
    shaped = torch.stack([exploration.shape(row, observation) for row in noise])  # [T, M, E, A]
    for member, first in ((0, 0), (1, 4)):
        period = [(first + t) // PERIOD for t in range(2 * PERIOD)]
        for t in range(1, 2 * PERIOD):
            same = torch.equal(shaped[t, member], shaped[t - 1, member])
            assert same == (period[t] == period[t - 1])
    other = exploration.shape(noise[0], observation + 1.0)
    assert not torch.isclose(other, shaped[0]).any()


def test_a_matrix_is_drawn_once_in_its_period(monkeypatch):
    """However many steps a rollout has; a horizon of one is the usual one."""
    exploration, numbers = make("state_dependent"), []
    matrix = ENVS * exploration.size
    key, first = action_keys(torch.arange(2), ENVS), torch.tensor([4, 10])

    def counted(key: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
        numbers.append(normal(key, counter))
        return numbers[-1]

    monkeypatch.setattr(exploration_module, "normal", counted)
    whole = exploration.draw(key, first, 2 * PERIOD)
    # both members see parts of three periods
    assert sum(drawn.numel() for drawn in numbers) == 2 * 3 * matrix
    numbers.clear()
    steps = torch.cat([exploration.draw(key, first + step, 1) for step in range(2 * PERIOD)])
    assert sum(drawn.numel() for drawn in numbers) == 2 * 3 * matrix
    assert torch.equal(steps, whole)
    step = first.view(1, -1) + torch.arange(2 * PERIOD).view(-1, 1)
    counter = step.div(PERIOD, rounding_mode="floor")[..., None, None] * exploration.size
    assert torch.equal(whole, normal(key.unsqueeze(-1), counter + torch.arange(exploration.size)))
    assert not torch.equal(exploration.draw(key + 1, first + 2 * PERIOD - 1, 1), whole[-1:])


def test_noise_is_repeated_for_n_steps_with_a_probability_in_proportion_to_one_over_n_squared():
    noise = draw("repeated", 200, [0], 64)[:, 0, :, 0]  # [T, E]
    changed = (noise[1:] != noise[:-1]).int()
    lengths: list[int] = []
    for environment in range(noise.shape[1]):
        places = [0, *(changed[:, environment].nonzero().flatten() + 1).tolist()]
        lengths += [after - before for before, after in itertools.pairwise(places)]
    total = sum(n**-2 for n in range(1, PERIOD + 1))
    assert max(lengths) == PERIOD
    for n in range(1, PERIOD + 1):
        assert lengths.count(n) / len(lengths) == pytest.approx(n**-2 / total, abs=0.02)
