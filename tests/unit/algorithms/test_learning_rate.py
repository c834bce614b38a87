"""Learning rates that fall or adapt, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from podracer_core.algorithms import adapted_rate, scheduled_rate

RATE = torch.tensor([1e-3, 2e-3, 4e-3, 8e-3])
TAKEN = torch.tensor([0, 25, 100, 1000])


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.0, 0.0]),
        # (1 + cos(pi / 4)) / 2 = (1 + sqrt(2) / 2) / 2
        ("cosine", [1.0, 0.5 + 2.0**0.5 / 4, 0.0, 0.0]),
    ],
)
def test_each_member_has_the_rate_of_its_own_transitions(schedule, shares):
    rate = scheduled_rate(schedule, RATE, TAKEN, 100)
    assert rate.dtype == torch.float32
    torch.testing.assert_close(rate, RATE * torch.tensor(shares), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("rate", "kl", "desired_kl", "expected"),
    [
        (3e-3, 0.021, 0.01, 2e-3),  # 3e-3 / 1.5
        (3e-3, 0.02, 0.01, 3e-3),  # just twice as far
        (3e-3, 0.005, 0.01, 3e-3),  # just half as far
        (2e-3, 0.0049, 0.01, 3e-3),  # 2e-3 * 1.5
        (1.2e-5, 0.1, 0.01, 1e-5),
        (8e-3, 0.0, 0.01, 1e-2),
        (0.5, 0.1, 0.0, 0.5),  # off
        (2e-3, float("nan"), 0.01, 2e-3),
    ],
)
def test_the_rate_follows_how_far_the_policy_has_come(rate, kl, desired_kl, expected):
    adapted = adapted_rate(
        torch.tensor([rate, 1e-3]), torch.tensor([kl, 0.0]), torch.tensor([desired_kl, 0.0])
    )
    torch.testing.assert_close(adapted, torch.tensor([expected, 1e-3]), rtol=1e-6, atol=0)
