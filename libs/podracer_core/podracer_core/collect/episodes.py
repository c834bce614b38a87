"""Returns and lengths of the episodes that end within a rollout, without a loop over steps or environments."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.buffers.rollout import EpisodeStatistics


class EpisodeTracker:
    """Carries each environment's running return, length and validity, [M, E], from one rollout to the next, and
    whether its episode counts as older than it is."""

    def __init__(self, members: int, num_envs: int, device: torch.device | str = "cpu") -> None:
        self._return = torch.zeros(members, num_envs, dtype=torch.float64, device=device)
        self._length = torch.zeros(members, num_envs, dtype=torch.int64, device=device)
        self._broken = torch.zeros(members, num_envs, dtype=torch.int64, device=device)
        self._aged = torch.zeros(members, num_envs, dtype=torch.bool, device=device)

    def reset(self) -> None:
        """Every environment starts a new episode."""
        for carried in self._carried().values():
            carried.zero_()

    def begin_aged(self, aged: Tensor) -> None:
        """The present episodes that are `aged`, [M, E] bool, count only if they end before they are cut off."""
        self._aged.copy_(aged)

    def update(
        self, reward: Tensor, ended: Tensor, valid: Tensor, terminated: Tensor | None = None
    ) -> EpisodeStatistics:
        """reward [T, M, E], ended and valid [T, M, E] bool -> statistics of the episodes that ended in these rows.

        terminated [T, M, E] bool: which of the ends are no cut; None: no episode is aged."""
        horizon = reward.shape[0]
        steps = torch.arange(1, horizon + 1, device=reward.device).view(-1, 1, 1)
        # Row t (from 1) of the episode's last end before t; 0 where its episode began before this rollout.
        end_row = torch.where(ended, steps, 0).cummax(0).values
        before = torch.cat([torch.zeros_like(end_row[:1]), end_row[:-1]])

        def since_start(total: Tensor, carried: Tensor) -> Tensor:
            """Of running totals [T + 1, M, E]: the part of each row's own episode."""
            return total[1:] - total.gather(0, before) + torch.where(before == 0, carried, 0)

        def running(values: Tensor) -> Tensor:
            return torch.cat([torch.zeros_like(values[:1]), values.cumsum(0)])

        returns = since_start(running(torch.where(valid, reward, 0.0).double()), self._return)
        broken = since_start(running((~valid).long()), self._broken)
        lengths = steps - before + torch.where(before == 0, self._length, 0)
        counted = ended & (broken == 0)
        if terminated is not None:
            counted &= terminated | (before > 0) | ~self._aged
            self._aged &= ~ended.any(0)
        statistics = EpisodeStatistics(
            count=counted.sum((0, 2)),
            return_sum=torch.where(counted, returns, 0.0).sum((0, 2)),
            length_sum=torch.where(counted, lengths, 0).sum((0, 2)),
        )
        for carried, last in ((self._return, returns), (self._length, lengths), (self._broken, broken)):
            carried.copy_(torch.where(ended[-1], 0, last[-1]))
        return statistics

    def state(self) -> dict[str, Tensor]:
        """Copies of what is carried, [M, E] each."""
        return {name: carried.clone() for name, carried in self._carried().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` gave."""
        for name, carried in self._carried().items():
            carried.copy_(state[name])

    def _carried(self) -> dict[str, Tensor]:
        return {"return": self._return, "length": self._length, "broken": self._broken, "aged": self._aged}
