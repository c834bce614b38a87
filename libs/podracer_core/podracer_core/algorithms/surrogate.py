"""PPO's two clipped objectives, each with its derivative.

Both are written so that NaN stays NaN, and the member that it belongs to is noticed.
"""

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
    return torch.minimum(free, clipped), torch.where(free > clipped, 0.0, free)


def clipped_value_error(value: Tensor, old: Tensor, target: Tensor, clip_range: Tensor) -> tuple[Tensor, Tensor]:
    """max((v - R)^2, (old + clip(v - old, -c, c) - R)^2) / 2 and its derivative in v, as OpenAI's baselines have it.

    value, old, target [M, B], clip_range [M] -> [M, B] each. A member whose range is 0 has (v - R)^2 / 2. The
    derivative is zero where the clipped error is the larger one, which then does not depend on v, and v - R elsewhere.
    """
    limit = clip_range.unsqueeze(1)
    error, moved = value - target, value - old
    free = error.square()
    # Only outside the range: inside, rounding alone would decide which of the two is larger.
    outside = (limit > 0) & (moved.abs() > limit)
    held = torch.where(outside, (old + torch.copysign(limit, moved) - target).square(), free)
    return 0.5 * torch.maximum(free, held), torch.where(held > free, 0.0, error)
