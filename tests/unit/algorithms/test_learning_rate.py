"""Learning rates that fall, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from podracer_core.algorithms.learning_rate import scheduled_rate

RATE = torch.tensor([1e-3, 2e-3, 4e-3, 8e-3])
TAKEN = torch.tensor([0, 25, 100, 1000])


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.0, 0.0]),
        ("cosine", [1.0, 0.5 + 2.0**0.5 / 4, 0.0, 0.0]),  # (1 + cos(pi / 4)) / 2 = (1 + sqrt(2) / 2) / 2
    ],
)
def test_each_member_has_the_rate_of_its_own_transitions(schedule: str, shares: list[float]) -> None:
    rate = scheduled_rate(schedule, RATE, TAKEN, 100)
    assert rate.dtype == torch.float32
    torch.testing.assert_close(rate, RATE * torch.tensor(shares), rtol=1e-6, atol=1e-12)
