"""Values as distributions over a fixed grid: Bellemare et al., 2017 (arXiv:1707.06887), C51."""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput


class ValueBins:
    """`count` values that are evenly spaced on [-limit, limit]; a critic's outputs are the logits
    of their weights.

    values   float32 [K]
    """

    def __init__(self, limit: float, count: int, device: torch.device | str = "cpu") -> None:
        self.limit, self.count = limit, count
        self.values = torch.linspace(-limit, limit, count, device=device)

    def mean(self, logits: Tensor) -> Tensor:
        """logits [..., K] -> [...]."""
        return logits.softmax(-1) @ self.values

    def pessimistic(self, logits: Tensor) -> Tensor:
        """Weights [M, B, K] of the critic with the smallest mean of N [M, N, B, K], row by row."""
        weights = logits.softmax(-1)
        least = (weights @ self.values).argmin(1)  # [M, B]
        chosen = least[:, None, :, None].expand(-1, 1, -1, self.count)
        return weights.gather(1, chosen).squeeze(1)

    def project(self, weights: Tensor, reward: Tensor, discount: Tensor, bonus: Tensor) -> Tensor:
        """The distribution of reward + discount * (z - bonus), z with `weights` [M, B, K]; the
        others are [M, B].

        Values beyond the grid are moved to its ends; each other one is shared by its two neighbours
        so that its mean stays (equation 7). Returns weights [M, B, K]; NaN where what comes in is
        not finite."""
        value = reward.unsqueeze(-1) + discount.unsqueeze(-1) * (self.values - bonus.unsqueeze(-1))
        is_lost = ~value.isfinite().all(-1, keepdim=True)
        place = (value.clamp(-self.limit, self.limit) + self.limit) * (
            (self.count - 1) / (2.0 * self.limit)
        )
        place = place.masked_fill(is_lost, 0.0).clamp(0.0, self.count - 1.0)
        lower = place.floor()
        share = place - lower
        index = lower.long()
        projected = torch.zeros_like(weights).scatter_add_(-1, index, weights * (1.0 - share))
        projected.scatter_add_(-1, (index + 1).clamp(max=self.count - 1), weights * share)
        return projected.masked_fill_(is_lost, torch.nan)

    def cross_entropy(
        self, logits: Tensor, target: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """logits [M, N, B, K] against the distribution `target` [M, B, K], rows weighted by weight
        [M, B].

        Returns the loss [M], the mean of the critics' sums over rows, its derivative in the logits
        [M, N, B, K], and how far the means are apart [M, B]. Raises InvalidInput for other shapes.
        """
        members, critics, rows, _ = logits.shape
        if target.shape != (members, rows, self.count) or weight.shape != (members, rows):
            raise InvalidInput(
                f"logits [M, N, B, K] {list(logits.shape)} do not fit targets {list(target.shape)} "
                f"and weights {list(weight.shape)}"
            )
        log_weights = logits.detach().log_softmax(-1)
        wanted, row = target.unsqueeze(1), weight.unsqueeze(1) / critics
        loss = -((wanted * log_weights).sum(-1) * row).sum((1, 2))
        slope = (log_weights.exp() - wanted) * row.unsqueeze(-1)
        error = (log_weights.exp() @ self.values - wanted @ self.values).abs().mean(1)
        return loss, slope, error
