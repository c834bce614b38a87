"""Means of what several learners bring."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["column", "sample_weights", "weighted_mean"]


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Of values [K, M, …] along K, weighted by weight [K, M], which is 0 or more and not 0 for all K: float64 [M, …].

    sum(w_k x_k) / sum(w_k), added in the order of K in float64. With weights of 1 and float32 values the sum is exact,
    and the mean as float32 is the true one correctly rounded, unless values differ by more than a factor of 2^24 / K.
    """
    total = torch.zeros_like(values[0], dtype=torch.float64)
    for value, share in zip(values, weight, strict=True):
        total += value.double() * column(share.double(), value)
    return total / column(weight.double().sum(0), total)


def sample_weights(samples: Sequence[int], counted: Tensor) -> Tensor:
    """float64 [K, M]: the samples [K] of those that are `counted` bool [K, M]; equal where these are all 0.

    They are divided by what divides all of them: equal numbers of samples weigh exactly as in a plain mean.
    """
    divisor = math.gcd(*samples) or 1
    reduced = torch.tensor([count // divisor for count in samples], dtype=torch.float64, device=counted.device)
    weight = torch.where(counted, reduced.unsqueeze(1), 0.0)
    return torch.where(weight.sum(0) > 0, weight, counted.double())


def column(of_members: Tensor, like: Tensor) -> Tensor:
    """[M] as [M, 1, …], to go with a tensor `like` [M, …]."""
    return of_members.view(-1, *[1] * (like.dim() - 1))
