"""Policies inside a bounded box: densities against torch.distributions, noise and random actions by
their shares."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from podracer_core.errors import InvalidInput
from podracer_core.networks import (
    BoxHead,
    DeterministicHead,
    Exploration,
    ExplorationKind,
    SquashedGaussianHead,
)
from podracer_core.random_numbers import action_keys
from support.errors import raises

MEMBERS, ROWS, OBSERVATIONS = 3, 7, 5
SPACE = gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
HEADS: dict[str, type[BoxHead]] = {
    "deterministic": DeterministicHead,
    "squashed_gaussian": SquashedGaussianHead,
}
BOTH = pytest.mark.parametrize("kind", HEADS)


def make(kind: str, exploration: ExplorationKind = "independent") -> Any:
    torch.manual_seed(0)
    return HEADS[kind](SPACE, Exploration(exploration, 4, OBSERVATIONS, 2))


def settings(
    head: BoxHead, random_fraction: float, noise_scale: float = 0.1
) -> dict[str, torch.Tensor]:
    values = {"random_fraction": random_fraction, "noise_scale": noise_scale}
    return {
        name: torch.full((MEMBERS, *shape), values[name]) for name, shape in head.settings.items()
    }


def noise(head: BoxHead, envs: int) -> torch.Tensor:
    return head.draw_noise(action_keys(torch.arange(MEMBERS), envs), torch.tensor([0, 3, 9]), 1)[0]


def squashed(output: torch.Tensor) -> TransformedDistribution:
    mean, log_std = output.double().chunk(2, -1)
    return TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])


def test_the_squashed_density_of_a_sampled_action_equals_torch_distributions():
    head = make("squashed_gaussian")
    output = 0.5 * torch.randn(MEMBERS, ROWS, 4)
    action, log_prob = head.sample_with_log_prob(output, torch.randn(MEMBERS, ROWS, 2))
    expected = squashed(output).log_prob(action.double()).sum(-1)
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        head.log_prob(output, {}, action).double(), expected, rtol=1e-4, atol=1e-4
    )
    stored, _ = head.sample(
        output, settings(head, 0.0), noise(head, ROWS), torch.randn(MEMBERS, ROWS, OBSERVATIONS)
    )
    expected = squashed(output).log_prob(stored.double()).sum(-1)
    torch.testing.assert_close(
        head.log_prob(output, {}, stored).double(), expected, rtol=1e-4, atol=1e-4
    )


def test_the_squashed_density_far_from_zero_is_finite_and_right():
    head = make("squashed_gaussian")
    output = torch.tensor([[[9.0, -8.0, 0.0, 0.0]]])
    action, log_prob = head.sample_with_log_prob(output, torch.tensor([[[0.5, -0.5]]]))
    assert action.abs().max() <= 1
    raw = torch.tensor([9.5, -8.5]).double()
    # log N(u) - log(1 - tanh(u)^2), and 1 - tanh(u)^2 = 1 / cosh(u)^2
    expected = (Normal(output[0, 0, :2].double(), 1.0).log_prob(raw) + 2 * raw.cosh().log()).sum()
    torch.testing.assert_close(log_prob.double(), expected.view(1, 1), rtol=1e-5, atol=1e-5)


def test_the_reparametrized_gradient_equals_autograd_through_torch_distributions():
    head = make("squashed_gaussian")
    output = (0.5 * torch.randn(MEMBERS, ROWS, 4)).requires_grad_()
    drawn, weight = torch.randn(MEMBERS, ROWS, 2), torch.randn(MEMBERS, ROWS, 3)

    def gradient(action: torch.Tensor, log_prob: torch.Tensor) -> torch.Tensor:
        total = (action * weight[..., :2]).sum() + (log_prob * weight[..., 2]).sum()
        (result,) = torch.autograd.grad(total, output)
        return result

    mine = gradient(*head.sample_with_log_prob(output, drawn))
    mean, log_std = output.double().chunk(2, -1)
    action = (mean + log_std.exp() * drawn).tanh()
    peer = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    torch.testing.assert_close(
        mine, gradient(action, peer.log_prob(action).sum(-1)), rtol=1e-3, atol=1e-4
    )


def test_the_density_of_noise_around_a_deterministic_policy():
    head = make("deterministic")
    output = torch.randn(MEMBERS, ROWS, 2)
    action = torch.rand(MEMBERS, ROWS, 2)
    scales = torch.tensor([[0.1], [0.5], [2.0]])
    expected = Normal(output.tanh(), scales.unsqueeze(1)).log_prob(action).sum(-1)
    mine = head.log_prob(output, {"noise_scale": scales}, action)
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


def test_a_deterministic_policy_with_noise_stays_in_the_box():
    head, output = make("deterministic"), torch.randn(MEMBERS, 1, 2).expand(-1, 5000, -1)
    drawn = noise(head, 5000)
    observation = torch.zeros(MEMBERS, 5000, OBSERVATIONS)
    action, _ = head.sample(output, settings(head, 0.0, 0.05), drawn, observation)
    middle = output[:, 0].tanh()
    inside = middle.abs() < 0.8
    assert inside.any()
    torch.testing.assert_close(action.mean(1)[inside], middle[inside], rtol=0, atol=0.005)
    torch.testing.assert_close(
        action.std(1)[inside], torch.full_like(middle[inside], 0.05), rtol=0, atol=0.005
    )
    wild, _ = head.sample(output, settings(head, 0.0, 5.0), drawn, observation)
    assert wild.abs().max() == 1.0
    without, _ = head.sample(output, settings(head, 0.0, 0.0), drawn, observation)
    assert torch.equal(without, head.mode(output))


@BOTH
def test_a_share_of_the_actions_is_uniformly_random(kind):
    head = make(kind)
    output = torch.full((MEMBERS, 5000, head.output_size), 0.3)
    drawn, observation = noise(head, 5000), torch.zeros(MEMBERS, 5000, OBSERVATIONS)
    own, _ = head.sample(output, settings(head, 0.0), drawn, observation)
    random, _ = head.sample(output, settings(head, 1.0), drawn, observation)
    torch.testing.assert_close(random.mean(1), torch.zeros(MEMBERS, 2), rtol=0, atol=0.04)
    torch.testing.assert_close(random.var(1), torch.full((MEMBERS, 2), 1 / 3), rtol=0, atol=0.03)
    assert random.abs().max() <= 1.0
    shares = {"random_fraction": torch.tensor([[0.1], [0.5], [0.9]])}
    mixed, _ = head.sample(output, settings(head, 0.0) | shares, drawn, observation)
    from_random = (mixed == random).all(-1)
    assert (from_random | (mixed == own).all(-1)).all()
    expected = shares["random_fraction"][:, 0]
    torch.testing.assert_close(from_random.float().mean(1), expected, rtol=0, atol=0.03)


@BOTH
@pytest.mark.parametrize("exploration", ["independent", "correlated", "state_dependent"])
def test_random_actions_and_noise_share_no_numbers(kind, exploration):
    head, size = make(kind, exploration), 2000
    drawn, observation = noise(head, size), torch.randn(MEMBERS, size, OBSERVATIONS)
    assert drawn.shape == (MEMBERS, size, head.noise_size)
    explored, random, choice = head.explore(drawn, observation)
    numbers = torch.cat([explored, random, choice], -1)
    for member in range(MEMBERS):
        correlation = torch.corrcoef(numbers[member].t()).fill_diagonal_(0)
        assert correlation.abs().max() < 0.1


@BOTH
def test_the_greedy_action_is_the_middle_in_the_environments_units(kind):
    head = make(kind)
    output = torch.zeros(1, 2, head.output_size)
    output[0, 1, :2] = torch.tensor([50.0, -50.0])
    expected = torch.tensor([[[0.0, 5.0], [2.0, 0.0]]])
    torch.testing.assert_close(head.to_environment(head.mode(output)), expected)
    torch.testing.assert_close(head.greedy_module()(output[0]), expected[0])


@BOTH
def test_other_spaces_are_refused(kind):
    spaces: list[gymnasium.Space[Any]] = [
        gymnasium.spaces.Discrete(3),
        gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        gymnasium.spaces.Box(0, 255, (2,), np.uint8),
    ]
    for space in spaces:
        with raises(InvalidInput, "ACTION_SPACE_UNSUPPORTED", match="finite bounds"):
            HEADS[kind](space, Exploration("independent", 1, 1, 2))
