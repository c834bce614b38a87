"""Generalized advantage estimation with true time limits, and its correction for stale rollouts."""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: Tensor,
    gae_lambda: Tensor,
    importance: Tensor | None = None,
) -> Tensor:
    """Advantages [T, M, E]; every other tensor is [T, M, E] too, gamma and gae_lambda are [M].

    Schulman et al., 2016 (arXiv:1506.02438), equations 11, 12 and 16:
        delta[t] = r[t] + gamma * (1 - terminated[t]) * V(s'[t]) - V(s[t])
        A[t]     = delta[t] + gamma * lambda * (1 - ended[t]) * A[t + 1]
    next_value is V of the true successor s', before any reset, so an episode that a time limit cut off bootstraps
    from where it was; only a terminated one has no future. The sum stops at both. A row that is not valid has the
    advantage 0, and the rows before it do not look past it.

    importance [T, M, E] is rho = min(1, pi / mu) of a rollout that an older policy mu took: then this is V-trace
    (Espeholt et al., 2018, arXiv:1802.01561, section 4.1) with c = lambda * rho, which is the above where pi = mu:
        A[t] = delta[t] + gamma * lambda * (1 - ended[t]) * rho[t + 1] * A[t + 1]
    The policy's gradient weighs A[t] with rho[t], and the value's target is V(s[t]) + rho[t] * A[t].
    """
    discount = gamma.view(-1, 1)
    delta = reward + discount * torch.where(terminated, 0.0, next_value) - value
    decay = (discount * gae_lambda.view(-1, 1)).expand_as(delta)
    if importance is not None:
        importance = torch.where(valid, importance, 0.0)
        decay = torch.cat([decay[:-1] * importance[1:], decay[-1:]])
    delta = torch.where(valid, delta, 0.0)
    decay = torch.where(valid & ~(terminated | truncated), decay, 0.0)
    advantages = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(reward.shape[0] - 1, -1, -1):
        following = torch.addcmul(delta[t], decay[t], following, out=advantages[t])
    return advantages


def normalized_advantages(advantages: Tensor, valid: Tensor) -> Tensor:
    """To mean 0 and standard deviation 1 over each member's valid rows: advantages, valid [M, B] -> [M, B]."""
    count = valid.sum(1, keepdim=True).clamp(min=1)
    centred = torch.where(valid, advantages - torch.where(valid, advantages, 0.0).sum(1, keepdim=True) / count, 0.0)
    deviation = (centred.square().sum(1, keepdim=True) / count).sqrt()
    return centred / (deviation + 1e-8)
