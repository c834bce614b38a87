"""Distributions against torch.distributions, their written-out derivatives against autograd."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.errors import InvalidInput
from podracer_core.networks import PolicyHead, make_policy_head
from podracer_core.random_numbers import action_keys
from support.errors import raises

MEMBERS, ROWS, SAMPLES = 3, 7, 20_000
BOX = gymnasium.spaces.Box(
    np.array([-2.0, 0.0, -np.inf], np.float32), np.array([2.0, 10.0, np.inf], np.float32)
)
SPACES: dict[str, gymnasium.Space[Any]] = {
    "discrete": gymnasium.spaces.Discrete(5),
    "multi_discrete": gymnasium.spaces.MultiDiscrete([3, 2, 4]),
    "multi_binary": gymnasium.spaces.MultiBinary(6),
    "box": BOX,
}
# Sizes of the independent choices, for those that know masks.
CHOICES = {"discrete": [5], "multi_discrete": [3, 2, 4]}
EVERY = pytest.mark.parametrize("kind", SPACES)
MASKED = pytest.mark.parametrize("kind", CHOICES)

Settings = dict[str, torch.Tensor]


def case(kind: str) -> tuple[PolicyHead, torch.Tensor, Settings, torch.Tensor]:
    """head, output, settings and actions"""
    torch.manual_seed(0)
    head = make_policy_head(SPACES[kind])
    output = torch.randn(MEMBERS, ROWS, head.output_size)
    settings = {name: torch.randn(MEMBERS, *shape) for name, shape in head.settings.items()}
    if kind == "box":
        return head, output, settings, torch.randn(MEMBERS, ROWS, 3)
    sizes = {"multi_binary": [2] * 6}.get(kind) or CHOICES[kind]
    action = torch.stack([torch.randint(size, (MEMBERS, ROWS)) for size in sizes], -1)
    return head, output, settings, action.squeeze(-1) if kind == "discrete" else action


def masks(kind: str, action: torch.Tensor) -> torch.Tensor:
    """Random ones that allow `action`, and forbid something in every member."""
    chosen = action.view(MEMBERS, ROWS, -1)
    allowed = torch.cat(
        [
            torch.nn.functional.one_hot(chosen[..., part], size)
            for part, size in enumerate(CHOICES[kind])
        ],
        -1,
    )
    mask = allowed.bool() | (torch.rand(allowed.shape) < 0.4)
    assert not mask.flatten(1).all(1).any()
    return mask


class Reference:
    """Independent torch.distributions, in double precision; with a mask only what it allows has a
    probability."""

    def __init__(
        self, kind: str, output: torch.Tensor, settings: Settings, mask: torch.Tensor | None = None
    ) -> None:
        output = output.double()
        self.parts: list[Any] = []
        if kind == "box":
            std = settings["log_std"].double().exp().unsqueeze(1)
            self.parts = [
                torch.distributions.Normal(output[..., j], std[..., j])
                for j in range(output.shape[-1])
            ]
        elif kind == "multi_binary":
            self.parts = [
                torch.distributions.Bernoulli(logits=column) for column in output.unbind(-1)
            ]
        else:
            allowed = torch.ones_like(output) if mask is None else mask.double()
            for logits, share in zip(
                output.split(CHOICES[kind], -1), allowed.split(CHOICES[kind], -1), strict=True
            ):
                self.parts.append(torch.distributions.Categorical(probs=logits.softmax(-1) * share))

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        columns = action.view(*action.shape[:2], -1).unbind(-1)
        values = [
            part.log_prob(column.double()) for part, column in zip(self.parts, columns, strict=True)
        ]
        return torch.stack(values).sum(0)

    def entropy(self) -> torch.Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)


def check(head: PolicyHead, kind: str, mask: torch.Tensor | None) -> torch.Tensor:
    """Density, entropy and derivatives against the reference; returns the gradient in the
    output."""
    _, output, settings, action = case(kind)
    allowed = output if mask is None else head.allow(output, mask)
    density, peer = head.density(allowed, settings, action), Reference(kind, output, settings, mask)
    assert density.log_prob.shape == density.entropy.shape == (MEMBERS, ROWS)
    torch.testing.assert_close(
        density.log_prob.double(), peer.log_prob(action), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(density.entropy.double(), peer.entropy(), rtol=1e-5, atol=1e-5)

    log_prob_gradient, entropy_gradient = torch.randn(2, MEMBERS, ROWS)
    mine = density.gradient(log_prob_gradient, entropy_gradient)
    leaves = [tensor.requires_grad_() for tensor in (output, *settings.values())]
    peer = Reference(kind, output, settings, mask)
    (peer.log_prob(action) * log_prob_gradient + peer.entropy() * entropy_gradient).sum().backward()
    torch.testing.assert_close(mine[0], output.grad, rtol=1e-4, atol=1e-5)
    assert mine[1].shape == (MEMBERS, head.log_std_size)
    if head.log_std_size:
        torch.testing.assert_close(mine[1], leaves[1].grad, rtol=1e-4, atol=1e-5)
    return mine[0]


@EVERY
def test_density_entropy_and_derivatives_equal_torch_distributions(kind):
    check(make_policy_head(SPACES[kind]), kind, None)


@MASKED
def test_with_masks_they_equal_those_of_the_allowed_actions_alone(kind):
    mask = masks(kind, case(kind)[3])
    gradient = check(make_policy_head(SPACES[kind]), kind, mask)
    assert (gradient[~mask] == 0).all()


@EVERY
def test_samples_have_the_distribution_and_the_log_prob_that_they_say(kind):
    head, output, settings, _ = case(kind)
    rows = output[:, :1].expand(-1, SAMPLES, -1).contiguous()
    noise = head.draw_noise(
        action_keys(torch.arange(MEMBERS), SAMPLES), torch.zeros(MEMBERS).long(), 1
    )[0]
    action, log_prob = head.sample(rows, settings, noise, torch.empty(MEMBERS, SAMPLES, 0))
    assert action.shape == (MEMBERS, SAMPLES, *head.action_shape)
    assert action.dtype == head.action_dtype
    peer = Reference(kind, rows, settings)
    torch.testing.assert_close(log_prob.double(), peer.log_prob(action), rtol=1e-4, atol=1e-4)
    for column, part in zip(action.view(MEMBERS, SAMPLES, -1).unbind(-1), peer.parts, strict=True):
        if kind == "box":
            standardized = (column - part.mean) / part.stddev
            torch.testing.assert_close(
                standardized.mean(1), torch.zeros(MEMBERS).double(), rtol=0, atol=0.03
            )
            torch.testing.assert_close(
                standardized.std(1), torch.ones(MEMBERS).double(), rtol=0, atol=0.03
            )
            continue
        choices = part.enumerate_support()[:, 0, 0].long()
        for choice in choices.tolist():
            expected = part.log_prob(torch.tensor(choice).double())[:, 0].exp()
            torch.testing.assert_close(
                (column == choice).double().mean(1), expected, rtol=0, atol=0.015
            )


@MASKED
def test_what_is_forbidden_is_never_chosen(kind):
    head, output, settings, action = case(kind)
    mask = masks(kind, action)
    rows = head.allow(output, mask).repeat(1, 1000, 1)
    noise = head.draw_noise(
        action_keys(torch.arange(MEMBERS), 1000 * ROWS), torch.zeros(MEMBERS).long(), 1
    )[0]
    for chosen in (head.sample(rows, settings, noise, noise)[0], head.mode(rows)):
        columns = chosen.view(MEMBERS, 1000 * ROWS, -1).unbind(-1)
        parts = mask.repeat(1, 1000, 1).split(CHOICES[kind], -1)
        for column, part in zip(columns, parts, strict=True):
            assert part.gather(-1, column.unsqueeze(-1)).all()


@EVERY
def test_the_greedy_action_is_the_most_probable_one(kind):
    head, output, settings, action = case(kind)
    greedy = head.mode(output)
    assert greedy.shape == action.shape
    best = head.density(output, settings, greedy).log_prob
    noise = head.draw_noise(
        action_keys(torch.arange(MEMBERS), ROWS), torch.zeros(MEMBERS).long(), 50
    )
    for drawn in noise:
        other, _ = head.sample(output, settings, drawn, drawn)
        assert (head.density(output, settings, other).log_prob <= best + 1e-6).all()


@EVERY
def test_noise_is_the_same_whatever_the_horizon_is_split_into(kind):
    head = make_policy_head(SPACES[kind])
    key, first = action_keys(torch.arange(MEMBERS), ROWS), torch.tensor([0, 5, 11])
    whole = head.draw_noise(key, first, 9)
    assert whole.shape == (9, MEMBERS, ROWS, head.noise_size)
    assert torch.equal(
        whole, torch.cat([head.draw_noise(key, first, 4), head.draw_noise(key, first + 4, 5)])
    )
    assert whole.unique().numel() > 0.99 * whole.numel()


def test_box_actions_are_scaled_and_clipped_for_the_environment():
    head = make_policy_head(BOX)
    raw = torch.tensor([[[0.0, 0.0, 7.0], [1.0, -1.0, -3.0], [9.0, -9.0, 0.0], [0.5, 0.5, 0.5]]])
    expected = torch.tensor([[[0.0, 5.0, 7.0], [2.0, 0.0, -3.0], [2.0, 0.0, 0.0], [1.0, 7.5, 0.5]]])
    torch.testing.assert_close(head.to_environment(raw), expected)


def test_box_actions_get_their_shape_back():
    head = make_policy_head(gymnasium.spaces.Box(-1.0, 1.0, (2, 3)))
    assert head.action_shape == (6,)
    assert head.to_environment(torch.zeros(4, 5, 6)).shape == (4, 5, 2, 3)


def test_other_spaces_are_refused():
    others: list[gymnasium.Space[Any]] = [
        gymnasium.spaces.Box(0, 255, (2,), np.uint8),
        gymnasium.spaces.MultiBinary((2, 3)),
        gymnasium.spaces.MultiDiscrete([[2, 3], [4, 5]]),
        gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2)),
    ]
    for space in others:
        with raises(InvalidInput, "ACTION_SPACE_UNSUPPORTED"):
            make_policy_head(space)


@pytest.mark.parametrize("kind", ["multi_binary", "box"])
def test_masks_are_refused_where_there_can_be_none(kind):
    head, output, _, _ = case(kind)
    with pytest.raises(NotImplementedError, match="action masks"):
        head.allow(output, torch.ones_like(output).bool())
