"""A divisor of rewards that gives returns a deviation of 1: PPO's, and FlashSAC's
(arXiv:2604.04539)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.buffers import Rollout
from podracer_core.kernels import sums_over_time
from podracer_core.networks import RunningNormalizer

_EPSILON = 1e-8
_RUNNING = "running_return"


class ReturnScale:
    """Running statistics of each member's discounted return so far, G = r + gamma G of the step
    before.

    An episode begins with G = 0, as in VecNormalize of Stable-Baselines3. In the code of FlashSAC's
    authors its last step begins with 0, and the next episode inherits that step's reward:
    `drops_last` does the same.

    memory   tensors [M, …] that a member's future depends on, by name
    """

    def __init__(
        self,
        members: int,
        limit: float,
        device: torch.device | str = "cpu",
        *,
        drops_last: bool = False,
    ) -> None:
        """`limit`: no return is beyond ± `limit` after the division; inf sets none."""
        self._limit, self._drops_last = limit, drops_last
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

    @property
    def statistics(self) -> RunningNormalizer:
        """Those of the returns."""
        return self._statistics

    def running(self, member: int) -> dict[str, Tensor]:
        """A copy of one member's returns of the episodes that go on, [E]; empty before there are
        any."""
        running = self._loaded.get(member) if self._running is None else self._running[member]
        return {} if running is None else {_RUNNING: running.clone()}

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

    def begin(self, rollout: Rollout) -> bool:
        """Make room for the returns of its environments. True where there was none: they begin at
        0, or as loaded."""
        if self._running is not None and self._running.shape == rollout.reward.shape[1:]:
            return False
        self._running = torch.zeros_like(rollout.reward[0])
        for member, value in self._loaded.items():
            if value.shape == self._running[member].shape:
                self._running[member] = value
        self._loaded = {}
        return True

    def update(self, rollout: Rollout, gamma: Tensor, active: Tensor) -> None:
        """Take in the rewards of a rollout, which goes on where the one before ended; gamma [M].
        After `begin`."""
        assert self._running is not None
        stops = rollout.terminated | rollout.truncated | ~rollout.valid
        decay = torch.where(stops, 0.0, gamma.unsqueeze(1))
        if not self._drops_last:  # it is the row before that cuts
            decay = torch.cat([gamma.view(1, -1, 1).expand_as(decay[:1]), decay[:-1]])
        returns = sums_over_time(
            torch.where(rollout.valid, rollout.reward, 0.0), decay, self._running
        )
        running = returns[-1]
        goes_on = running.isfinite() if self._drops_last else running.isfinite() & ~stops[-1]
        self._running.copy_(torch.where(goes_on, running, 0.0))
        rows = returns.transpose(0, 1).flatten(1)
        self._statistics.update(
            rows.unsqueeze(-1), rollout.valid.transpose(0, 1).flatten(1), active
        )
        largest = torch.maximum(self._largest, rows.abs().amax(1))
        torch.where(active & largest.isfinite(), largest, self._largest, out=self._largest)
