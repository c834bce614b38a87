"""Learning rates that change while an agent learns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LEAST, _GREATEST, _FACTOR = 1e-5, 1e-2, 1.5  # of adapted rates: rsl_rl's


def scheduled_rate(schedule: str, rate: Tensor, transitions: Tensor, schedule_steps: int) -> Tensor:
    """The learning rate of members that have taken `transitions` so far; all tensors are [M].

    constant  the rate itself
    linear    falls to 0 over `schedule_steps` transitions, and stays there
    cosine    the same as half a wave (Loshchilov and Hutter, 2017, arXiv:1608.03983, equation 5, without restarts)
    """
    if schedule == "constant":
        return rate
    progress = (transitions.double() / schedule_steps).clamp(max=1.0)
    share = 1 - progress if schedule == "linear" else 0.5 * (1 + torch.cos(math.pi * progress))
    return (rate.double() * share).float()


def adapted_rate(rate: Tensor, kl: Tensor, desired_kl: Tensor) -> Tensor:
    """The learning rate of members whose policy has come as far as `kl` from where it was; all tensors are [M].

    A factor of 1.5 lower where that is more than twice as far as desired, higher where it is less than half as far, and
    within 1e-5 and 1e-2 (rsl_rl: Schwarke et al. 2025, arXiv:2509.10771). It stays where `desired_kl` is 0.
    """
    lower = torch.where(kl > 2 * desired_kl, rate / _FACTOR, rate)
    changed = torch.where(kl < desired_kl / 2, rate * _FACTOR, lower).clamp(_LEAST, _GREATEST)
    return torch.where(desired_kl > 0, changed, rate)
