"""Learning rates that fall while an agent learns."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
