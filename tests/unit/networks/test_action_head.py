"""Distributions against torch.distributions, their written-out derivatives against autograd."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.errors import InvalidInput
from podracer_core.networks import ActionHead, make_policy_head

MEMBERS, ROWS = 3, 7
BOX = gymnasium.spaces.Box(np.array([-2.0, 0.0, -np.inf], np.float32), np.array([2.0, 10.0, np.inf], np.float32))
SPACES = {"discrete": gymnasium.spaces.Discrete(5), "box": BOX}


def case(kind: str) -> tuple[ActionHead, torch.Tensor, torch.Tensor, torch.Tensor]:
    """head, output, log_std and actions"""
    torch.manual_seed(0)
    head = make_policy_head(SPACES[kind])
    output = torch.randn(MEMBERS, ROWS, head.output_size)
    log_std = torch.randn(MEMBERS, head.log_std_size)
    action = torch.randint(5, (MEMBERS, ROWS)) if kind == "discrete" else torch.randn(MEMBERS, ROWS, 3)
    return head, output, log_std, action


def reference(kind: str, output: torch.Tensor, log_std: torch.Tensor) -> torch.distributions.Distribution:
    if kind == "discrete":
        return torch.distributions.Categorical(logits=output)
    return torch.distributions.Independent(torch.distributions.Normal(output, log_std.exp().unsqueeze(1)), 1)


@pytest.mark.parametrize("kind", SPACES)
def test_log_prob_and_entropy_equal_torch_distributions(kind: str) -> None:
    head, output, log_std, action = case(kind)
    density, peer = head.density(output, log_std, action), reference(kind, output, log_std)
    assert density.log_prob.shape == density.entropy.shape == (MEMBERS, ROWS)
    torch.testing.assert_close(density.log_prob, peer.log_prob(action), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(density.entropy, peer.entropy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_derivatives_equal_autograd(kind: str) -> None:
    head, output, log_std, action = case(kind)
    log_prob_gradient, entropy_gradient = torch.randn(2, MEMBERS, ROWS)
    mine = head.density(output, log_std, action).gradient(log_prob_gradient, entropy_gradient)
    output, log_std = output.requires_grad_(), log_std.requires_grad_()
    peer = reference(kind, output, log_std)
    (peer.log_prob(action) * log_prob_gradient + peer.entropy() * entropy_gradient).sum().backward()
    torch.testing.assert_close(mine[0], output.grad, rtol=1e-4, atol=1e-5)
    if head.log_std_size:
        torch.testing.assert_close(mine[1], log_std.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_samples_have_the_distribution_and_the_log_prob_that_they_say(kind: str) -> None:
    head, output, log_std, _ = case(kind)
    output = output[:, :1].expand(-1, 20_000, -1).contiguous()
    noise = head.draw_noise(
        torch.arange(MEMBERS).view(-1, 1, 1), torch.arange(20_000 * head.noise_size).view(1, 20_000, head.noise_size)
    )
    action, log_prob = head.sample(output, log_std, noise)
    torch.testing.assert_close(log_prob, reference(kind, output, log_std).log_prob(action), rtol=1e-4, atol=1e-4)
    if kind == "discrete":
        frequencies = torch.stack([(action == choice).float().mean(1) for choice in range(5)], -1)
        torch.testing.assert_close(frequencies, output[:, 0].softmax(-1), rtol=0, atol=0.015)
    else:
        standardized = (action - output) / log_std.exp().unsqueeze(1)
        torch.testing.assert_close(standardized.mean(1), torch.zeros(MEMBERS, 3), rtol=0, atol=0.03)
        torch.testing.assert_close(standardized.std(1), torch.ones(MEMBERS, 3), rtol=0, atol=0.03)


def test_box_actions_are_scaled_and_clipped_for_the_environment() -> None:
    head = make_policy_head(BOX)
    raw = torch.tensor([[[0.0, 0.0, 7.0], [1.0, -1.0, -3.0], [9.0, -9.0, 0.0], [0.5, 0.5, 0.5]]])
    expected = torch.tensor([[[0.0, 5.0, 7.0], [2.0, 0.0, -3.0], [2.0, 0.0, 0.0], [1.0, 7.5, 0.5]]])
    torch.testing.assert_close(head.to_environment(raw), expected)


def test_box_actions_get_their_shape_back() -> None:
    head = make_policy_head(gymnasium.spaces.Box(-1.0, 1.0, (2, 3)))
    assert head.action_shape == (6,)
    assert head.to_environment(torch.zeros(4, 5, 6)).shape == (4, 5, 2, 3)


def test_other_spaces_are_refused() -> None:
    for space in (gymnasium.spaces.MultiDiscrete([2, 3]), gymnasium.spaces.Box(0, 255, (2,), np.uint8)):
        with pytest.raises(InvalidInput, match="acts in Discrete and float Box"):
            make_policy_head(space)
