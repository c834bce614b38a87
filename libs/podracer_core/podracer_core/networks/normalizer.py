"""Running mean and variance of every member's observations (or value targets), and an actor's copy
of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.buffers import Rollout
from podracer_core.fusion import Moments, pooled
from podracer_core.networks.actor import NetworkActor

# Variances below this are constants of the environment; dividing by less would blow up rounding
# errors.
_EPSILON = 1e-8

_PREFIX = "observations."


class RunningNormalizer:
    """Mean and variance over all valid rows so far: `count` [M], `mean` and `variance` [M, K], in
    float64.

    Batches are merged by Chan, Golub and LeVeque's formula (1979), which is stable and exact.
    Before the first batch the mean is 0 and the variance 1, so normalizing changes nothing."""

    def __init__(self, members: int, size: int, device: torch.device | str = "cpu") -> None:
        self.count = torch.zeros(members, dtype=torch.float64, device=device)
        self.mean = torch.zeros(members, size, dtype=torch.float64, device=device)
        self.variance = torch.ones(members, size, dtype=torch.float64, device=device)
        self._growth: RunningNormalizer | None = None
        # from which the growth counts, where these here are frozen
        self._base: Moments | None = None

    def share(self, *, frozen: bool) -> RunningNormalizer:
        """Several learners have these statistics: from now on those of the rows since the last
        `load_moments` are kept apart as well, and returned; they go on changing. `frozen`: these
        here change by `load_moments` and `settle` alone."""
        members, size = self.mean.shape
        self._growth = RunningNormalizer(members, size, self.mean.device)
        self._base = self.moments() if frozen else None
        self._restart(self._growth)
        return self._growth

    def update(self, rows: Tensor, valid: Tensor, active: Tensor) -> None:
        """Merge `rows` [M, B, K] where `valid` [M, B]; members that are not `active` [M] keep their
        statistics."""
        if self._growth is not None:
            self._growth.update(rows, valid, active)
        if self._base is not None:
            return
        weight = valid.unsqueeze(-1)
        count = valid.sum(1, dtype=torch.float64)
        divisor = count.clamp(min=1.0)[:, None]
        # Centred on the old mean first: sums of float32 squares of large raw values would lose
        # their digits.
        centred = torch.where(weight, rows - self.mean.float()[:, None], 0.0)
        shift = centred.sum(1, dtype=torch.float64) / divisor
        variance = centred.square().sum(1, dtype=torch.float64) / divisor - shift.square()
        total = self.count + count
        share = (count / total.clamp(min=1.0))[:, None]
        mean = self.mean + share * shift
        merged = (
            (1 - share) * self.variance + share * variance + share * (1 - share) * shift.square()
        )
        changed = (active & (count > 0) & mean.isfinite().all(-1) & merged.isfinite().all(-1))[
            :, None
        ]
        # Never by multiplication: a diverged member's NaN must not touch what it froze with.
        torch.where(changed, mean, self.mean, out=self.mean)
        torch.where(changed, merged.clamp(min=0.0), self.variance, out=self.variance)
        torch.where(changed[:, 0], total, self.count, out=self.count)

    def scale(self) -> Tensor:
        """The standard deviation, [M, K] in float64; 1 where a feature has never changed."""
        return torch.where(self.variance > _EPSILON, self.variance, 1.0).sqrt()

    def moments(self) -> Moments:
        """The statistics, copied, as they are pooled."""
        return Moments(
            self.count.clone(), self.mean.clone(), self.variance * self.count.unsqueeze(1)
        )

    def load_moments(self, moments: Moments) -> None:
        """Take over pooled statistics; growth begins anew."""
        self._set(moments)
        if self._base is not None:
            self._base = moments.to(self.mean.device)
        if self._growth is not None:
            self._restart(self._growth)

    def settle(self) -> None:
        """Take the growth into frozen statistics too; it goes on to count from where it began."""
        if self._base is not None and self._growth is not None:
            self._set(pooled([self._base, self._growth.moments()]))

    def _set(self, moments: Moments) -> None:
        started = (moments.count > 0).unsqueeze(1)
        variance = moments.squares / moments.count.clamp(min=1.0).unsqueeze(1)
        self.count.copy_(moments.count)
        self.mean.copy_(torch.where(started, moments.mean, 0.0))
        self.variance.copy_(torch.where(started, variance, 1.0))

    def _restart(self, growth: RunningNormalizer) -> None:
        growth.count.zero_()
        growth.variance.fill_(1.0)
        growth.mean.copy_(self.mean)  # of no rows; the first ones are centred on it

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's count, mean and variance."""
        return {name: getattr(self, name)[member].clone() for name in ("count", "mean", "variance")}

    def load_member_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite one member with what `member_state` gave; with nothing it begins anew."""
        for name, beginning in (("count", 0.0), ("mean", 0.0), ("variance", 1.0)):
            getattr(self, name)[member] = state.get(name, beginning)


class ObservationStatistics:
    """Mean and scale of everything that the members have seen; the actor has a copy that changes
    when told.

    An actor that does not normalize (`limit` is None: it was told not to, or sees images) has none,
    and keeps its mean and scale."""

    def __init__(self, actor: NetworkActor) -> None:
        self._actor = actor
        size = actor.mean.shape[-1]
        self._running = (
            None if actor.limit is None else RunningNormalizer(actor.members, size, actor.device)
        )

    @property
    def running(self) -> RunningNormalizer | None:
        """The statistics; None if nothing is normalized."""
        return self._running

    def show(self) -> None:
        """Have the actor normalize with the statistics as they are now."""
        if self._running is not None:
            self._actor.mean.copy_(self._running.mean.unsqueeze(1))
            self._actor.scale.copy_(self._running.scale().unsqueeze(1))

    def update(self, rollout: Rollout, active: Tensor) -> None:
        """Take in what the `active` [M] members have acted on in a rollout."""
        if self._running is not None:
            observation = rollout.observation[:-1].transpose(0, 1).flatten(1, 2).flatten(2)
            self._running.update(observation, rollout.valid.transpose(0, 1).flatten(1), active)
            self.show()

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's statistics and of what the actor uses."""
        state = {
            "observation_mean": self._actor.mean[member, 0].clone(),
            "observation_scale": self._actor.scale[member, 0].clone(),
        }
        if self._running is not None:
            state |= {
                f"{_PREFIX}{name}": value
                for name, value in self._running.member_state(member).items()
            }
        return state

    def load_member_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite one member with what `member_state` gave; other entries are ignored."""
        if self._running is not None:
            own = {
                name.removeprefix(_PREFIX): value
                for name, value in state.items()
                if name.startswith(_PREFIX)
            }
            self._running.load_member_state(member, own)
            self.show()
