"""A divisor of rewards that keeps returns within a fixed grid of values: FlashSAC (arXiv:2604.04539)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.buffers.rollout import Rollout
from podracer_core.networks.normalizer import RunningNormalizer

_EPSILON = 1e-8
_RUNNING = "running_return"


class ReturnScale:
    """Running statistics of each member's discounted return so far, G = r + gamma G of the step before.

    memory   tensors [M, …] that a member's future depends on, by name
    """

    def __init__(self, members: int, limit: float, device: torch.device | str = "cpu") -> None:
        """`limit`: no return is beyond ± `limit` after the division."""
        self._limit = limit
        self._statistics = RunningNormalizer(members, 1, device)
        self._largest = torch.zeros(members, device=device)
        self._running: Tensor | None = None  # [M, E], of the episodes that go on
        self._loaded: dict[int, Tensor] = {}  # of members, for the first rollout
        self.memory = {
            "return_count": self._statistics.count,
            "return_mean": self._statistics.mean,
            "return_variance": self._statistics.variance,
            "largest_return": self._largest,
        }

    def running(self, member: int) -> dict[str, Tensor]:
        """A copy of one member's returns of the episodes that go on, [E]; empty before the first rollout."""
        return {} if self._running is None else {_RUNNING: self._running[member].clone()}

    def load_running(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Go on with what `running` gave, where as many environments go on; otherwise from 0."""
        value = state.get(_RUNNING)
        if value is None:
            return
        if self._running is None:
            self._loaded[member] = value
        elif value.shape == self._running[member].shape:
            self._running[member] = value

    def divisor(self) -> Tensor:
        """max(√Var G, max |G| / limit), [M]."""
        deviation = (self._statistics.variance[:, 0] + _EPSILON).sqrt().float()
        return torch.maximum(deviation, self._largest / self._limit)

    def update(self, rollout: Rollout, gamma: Tensor, active: Tensor) -> None:
        """Take in the rewards of a rollout, which goes on where the one before ended; gamma [M]."""
        if self._running is None or self._running.shape != rollout.reward.shape[1:]:
            self._running = torch.zeros_like(rollout.reward[0])
            for member, value in self._loaded.items():
                if value.shape == self._running[member].shape:
                    self._running[member] = value
            self._loaded = {}
        ended = rollout.terminated | rollout.truncated
        returns, running, rate = torch.empty_like(rollout.reward), self._running, gamma.unsqueeze(1)
        for step in range(rollout.horizon):
            before = torch.where(ended[step], 0.0, rate * running)
            running = torch.where(rollout.valid[step], before + rollout.reward[step], 0.0)
            returns[step] = running
        self._running = torch.where(running.isfinite(), running, 0.0)
        rows = returns.transpose(0, 1).flatten(1)
        self._statistics.update(rows.unsqueeze(-1), rollout.valid.transpose(0, 1).flatten(1), active)
        largest = torch.maximum(self._largest, rows.abs().amax(1))
        torch.where(active & largest.isfinite(), largest, self._largest, out=self._largest)
