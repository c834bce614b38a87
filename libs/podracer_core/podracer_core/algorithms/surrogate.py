"""The objective that gives PPO its name."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip_range: Tensor) -> tuple[Tensor, Tensor]:
    """min(r A, clip(r, 1 - c, 1 + c) A) of Schulman et al., 2017, equation 7, and its derivative in log r.

    log_ratio, advantage [M, B], clip_range [M] -> [M, B] each. The derivative is zero where the ratio has left the
    range in the direction that the advantage asks for, and r A elsewhere.
    """
    ratio = log_ratio.exp()
    limit = clip_range.unsqueeze(1)
    free = ratio * advantage
    clipped = torch.minimum(torch.maximum(ratio, 1 - limit), 1 + limit) * advantage
    # Written so that NaN stays NaN, and the member that it belongs to is noticed.
    return torch.minimum(free, clipped), torch.where(free > clipped, 0.0, free)
