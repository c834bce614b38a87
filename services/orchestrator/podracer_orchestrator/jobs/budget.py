"""The remaining budget of a job, and the part of it for a round. Numbers only, no tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LATE_PART, _LEAST_LATE_S = 0.1, 6.0
_CRUMB = 0.01
"""The fraction of a budget that is too small for another round."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a job; None: no limit. Cost is in device seconds, of a pod's processors or of
    its GPU."""

    env_steps: int | None = None
    active_time_s: float | None = None
    cost_s: float | None = None

    @property
    def late_s(self) -> float:
        """Seconds of time or cost by which a job may end late, for its last evaluations."""
        limits = [limit for limit in (self.active_time_s, self.cost_s) if limit is not None]
        return max(_LEAST_LATE_S, _LATE_PART * min(limits, default=math.inf))

    @property
    def can_be_reserved(self) -> bool:
        """Whether there is a limit of which leases reserve a part. They reserve no time: it passes
        for all at once."""
        return self.env_steps is not None or self.cost_s is not None


@dataclass(frozen=True, slots=True)
class Usage:
    """The use by committed checkpoints, and the further reservation by leases."""

    env_steps: int = 0
    active_time_s: float = 0.0
    cost_s: float = 0.0
    reserved_env_steps: int = 0
    reserved_cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Remainder:
    """The rest of a budget; None: no limit."""

    env_steps: int | None
    active_time_s: float | None
    cost_s: float | None

    @property
    def is_empty(self) -> bool:
        """Whether no round can begin."""
        return (
            (self.env_steps is not None and self.env_steps <= 0)
            or (self.active_time_s is not None and self.active_time_s <= 0.0)
            or (self.cost_s is not None and self.cost_s <= 0.0)
        )


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """Length of a round: steps of each member (0: no limit), seconds of the pod (None: no
    limit)."""

    member_env_steps: int = 0
    time_s: float | None = None

    def after(self, member_env_steps: int, time_s: float) -> RoundLimits:
        """The rest of the round after that much; never zero, so that the work can still be
        completed."""
        return RoundLimits(
            max(1, self.member_env_steps - member_env_steps) if self.member_env_steps else 0,
            max(0.1, self.time_s - time_s) if self.time_s is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """A round as it is leased, and what the lease reserves until it ends."""

    round: RoundLimits
    reserved_env_steps: int = 0
    reserved_cost_s: float = 0.0
    is_cut: bool = False
    """Whether the budget has made it shorter than it would be."""


def remainder(budget: Budget, usage: Usage) -> Remainder:
    """The budget that no checkpoint has used and no lease has reserved."""
    return Remainder(
        env_steps=None
        if budget.env_steps is None
        else max(0, budget.env_steps - usage.env_steps - usage.reserved_env_steps),
        active_time_s=_seconds_left(budget.active_time_s, usage.active_time_s),
        cost_s=_seconds_left(budget.cost_s, usage.cost_s + usage.reserved_cost_s),
    )


def used_part(budget: Budget, usage: Usage) -> float | None:
    """The part of a budget that committed checkpoints have used, 0 to 1; the largest of several
    limits, None without one."""
    used = (usage.env_steps, usage.active_time_s, usage.cost_s)
    limits = (budget.env_steps, budget.active_time_s, budget.cost_s)
    parts = [spent / limit for spent, limit in zip(used, limits, strict=True) if limit is not None]
    return min(1.0, max(parts)) if parts else None


def _seconds_left(limit_s: float | None, used_s: float) -> float | None:
    if limit_s is None:
        return None
    return limit_s - used_s if limit_s - used_s > _CRUMB * limit_s else 0.0


@dataclass(frozen=True, slots=True)
class BudgetSplit:
    """The number of teams that share the remaining budget, a pod's steps per second so far and
    their cost (0: unknown), and the number of pods in a team."""

    teams: int = 1
    env_steps_per_second: float = 0.0
    learners: int = 1
    cost_per_second: float = 0.0


def cut_round(
    round_: RoundLimits, left: Remainder, members: int, split: BudgetSplit
) -> Grant | None:
    """Cut a round to the remaining budget; None if it is used.

    A round reserves what it is known to use. If that is unknown (steps in a round of seconds, and
    cost always), it reserves a team's share, and at most twice its expected use, so that other
    teams of the job get some. Each pod of the team has its part of the cost, and ends its round
    with it. Every member gets at least one step."""
    if left.is_empty:
        return None
    steps, time_s = round_.member_env_steps, round_.time_s
    if left.env_steps is not None:
        share = left.env_steps if steps else _share_of_steps(round_, left.env_steps, split)
        steps = min(steps or share, max(1, share // members))
    cost_s = 0.0 if left.cost_s is None else left.cost_s / max(1, split.teams * split.learners)
    if time_s is not None and split.cost_per_second > 0.0:
        cost_s = min(cost_s, 2.0 * time_s * split.cost_per_second)
    if left.active_time_s is not None:
        time_s = min(left.active_time_s, math.inf if time_s is None else time_s)
    is_cut = steps < round_.member_env_steps or (
        round_.time_s is not None and (time_s or 0.0) < round_.time_s
    )
    return Grant(
        RoundLimits(steps, time_s),
        reserved_env_steps=steps * members if left.env_steps is not None else 0,
        reserved_cost_s=cost_s,
        is_cut=is_cut
        or left.cost_s is not None
        or (left.env_steps is not None and not round_.member_env_steps),
    )


def _share_of_steps(round_: RoundLimits, left: int, split: BudgetSplit) -> int:
    share = math.ceil(left / max(1, split.teams))
    if round_.time_s is None or split.env_steps_per_second <= 0.0:
        return share
    return min(share, math.ceil(2.0 * round_.time_s * split.learners * split.env_steps_per_second))
