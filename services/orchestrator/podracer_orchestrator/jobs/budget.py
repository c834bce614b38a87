"""What a job may still use, and what of it a round is given. Numbers only, no tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LATE_PART, _LEAST_LATE_S = 0.1, 6.0
_CRUMB = 0.01
"""Part of a budget that is too little to begin another round with."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job may use in all; None: no limit. Cost is in device seconds: those of a pod's processors, or of its
    GPU."""

    env_steps: int | None = None
    active_time_s: float | None = None
    cost_s: float | None = None

    @property
    def late_s(self) -> float:
        """Seconds of time, or of cost, by which a job may end late: so much is for its last evaluations."""
        limits = [limit for limit in (self.active_time_s, self.cost_s) if limit is not None]
        return max(_LEAST_LATE_S, _LATE_PART * min(limits, default=math.inf))

    @property
    def can_be_reserved(self) -> bool:
        """Whether there is anything of which leases reserve a part: of time they do not, it passes for all at once."""
        return self.env_steps is not None or self.cost_s is not None


@dataclass(frozen=True, slots=True)
class Usage:
    """What committed checkpoints have used, and what leases have reserved beyond that."""

    env_steps: int = 0
    active_time_s: float = 0.0
    cost_s: float = 0.0
    reserved_env_steps: int = 0
    reserved_cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is left; None: no limit."""

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
    """Length of a round: steps of each member (0: no limit), seconds of the pod (None: no limit)."""

    member_env_steps: int = 0
    time_s: float | None = None

    def after(self, member_env_steps: int, time_s: float) -> RoundLimits:
        """What is left of it after that much; never nothing, so that the work can still be completed."""
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
    """What no checkpoint has used and no lease has reserved."""
    return Remainder(
        env_steps=None
        if budget.env_steps is None
        else max(0, budget.env_steps - usage.env_steps - usage.reserved_env_steps),
        active_time_s=_seconds_left(budget.active_time_s, usage.active_time_s),
        cost_s=_seconds_left(budget.cost_s, usage.cost_s + usage.reserved_cost_s),
    )


def _seconds_left(limit_s: float | None, used_s: float) -> float | None:
    if limit_s is None:
        return None
    return limit_s - used_s if limit_s - used_s > _CRUMB * limit_s else 0.0


@dataclass(frozen=True, slots=True)
class BudgetSplit:
    """Among how many teams what is left is shared, how many steps a pod has done in a second so far and what that has
    cost (0: unknown), and how many pods a team has."""

    teams: int = 1
    env_steps_per_second: float = 0.0
    learners: int = 1
    cost_per_second: float = 0.0


def cut_round(round_: RoundLimits, left: Remainder, members: int, split: BudgetSplit) -> Grant | None:
    """Cut a round to what is left; None where nothing is.

    A round that says how much it uses takes that; one that does not (steps in a round of seconds, and cost always)
    takes a team's share, and no more than twice what it can be expected to use, so that the other teams of the job
    still find something. Of a share of the cost each pod of the team has its part, with which it ends its round. Every
    member gets a step at least.
    """
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
    is_cut = steps < round_.member_env_steps or (round_.time_s is not None and (time_s or 0.0) < round_.time_s)
    return Grant(
        RoundLimits(steps, time_s),
        reserved_env_steps=steps * members if left.env_steps is not None else 0,
        reserved_cost_s=cost_s,
        is_cut=is_cut or left.cost_s is not None or (left.env_steps is not None and not round_.member_env_steps),
    )


def _share_of_steps(round_: RoundLimits, left: int, split: BudgetSplit) -> int:
    share = math.ceil(left / max(1, split.teams))
    if round_.time_s is None or split.env_steps_per_second <= 0.0:
        return share
    return min(share, math.ceil(2.0 * round_.time_s * split.learners * split.env_steps_per_second))
