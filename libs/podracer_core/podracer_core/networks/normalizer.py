"""Running mean and variance of every member's observations (or value targets)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# Variances below this are constants of the environment; dividing by less would blow up rounding errors.
_EPSILON = 1e-8


class RunningNormalizer:
    """Mean and variance over all valid rows so far: `count` [M], `mean` and `variance` [M, K], in float64.

    Batches are merged by Chan, Golub and LeVeque's formula (1979), which is stable and exact. Before the first batch
    the mean is 0 and the variance 1, so normalizing changes nothing.
    """

    def __init__(self, members: int, size: int, device: torch.device | str = "cpu") -> None:
        self.count = torch.zeros(members, dtype=torch.float64, device=device)
        self.mean = torch.zeros(members, size, dtype=torch.float64, device=device)
        self.variance = torch.ones(members, size, dtype=torch.float64, device=device)

    def update(self, rows: Tensor, valid: Tensor, active: Tensor) -> None:
        """Merge `rows` [M, B, K] where `valid` [M, B]; members that are not `active` [M] keep their statistics."""
        weight = valid.unsqueeze(-1)
        count = valid.sum(1, dtype=torch.float64)
        divisor = count.clamp(min=1.0)[:, None]
        # Centred on the old mean first: sums of float32 squares of large raw values would lose their digits.
        centred = torch.where(weight, rows - self.mean.float()[:, None], 0.0)
        shift = centred.sum(1, dtype=torch.float64) / divisor
        variance = centred.square().sum(1, dtype=torch.float64) / divisor - shift.square()
        total = self.count + count
        share = (count / total.clamp(min=1.0))[:, None]
        mean = self.mean + share * shift
        merged = (1 - share) * self.variance + share * variance + share * (1 - share) * shift.square()
        changed = (active & (count > 0) & mean.isfinite().all(-1) & merged.isfinite().all(-1))[:, None]
        # Never by multiplication: a diverged member's NaN must not touch what it froze with.
        torch.where(changed, mean, self.mean, out=self.mean)
        torch.where(changed, merged.clamp(min=0.0), self.variance, out=self.variance)
        torch.where(changed[:, 0], total, self.count, out=self.count)

    def scale(self) -> Tensor:
        """The standard deviation, [M, K] in float64; 1 where a feature has never changed."""
        return torch.where(self.variance > _EPSILON, self.variance, 1.0).sqrt()

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's count, mean and variance."""
        return {name: getattr(self, name)[member].clone() for name in ("count", "mean", "variance")}

    def load_member_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite one member with what `member_state` gave."""
        for name in ("count", "mean", "variance"):
            getattr(self, name)[member].copy_(state[name])
