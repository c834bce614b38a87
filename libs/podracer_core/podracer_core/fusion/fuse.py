"""The lead's side of a fusion, without a network or a clock: which learner has brought what, and the result.

`fuse` makes of contributions the state to go on from; `FusionTable` says when, by quorum and deadline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput, PodracerError
from podracer_core.fusion.fusion import Fusion, Parameters, Stack
from podracer_core.fusion.state import Contribution, Fused, FusionState, column, pooled

LEAD = 0
"""The rank of the lead."""


@torch.no_grad()
def fuse(fusion: Fusion, state: FusionState, contributions: Sequence[Contribution]) -> FusionState:
    """What comes of `state`, from which all contributions began, and of these. Their order does not matter.

    A learner's member counts where it is active and all that it brings is finite; where it does not count, neither its
    parameters nor its statistics are in the result. A member that counts nowhere keeps what it had, and is not active;
    one that counts somewhere is, also for learners where it had diverged. So is it where the fusion itself gives what
    is not finite. Transitions count in any case: they have been taken.

    Raises InvalidInput for contributions of another cohort, and for a fusion that raises, or returns something else
    than the parameters it was given.
    """
    ordered = sorted(contributions, key=lambda contribution: contribution.rank)
    for contribution in ordered:
        state.require_like(contribution.growth)
    counted = torch.stack([_counts(contribution.growth) for contribution in ordered])
    previous = {name: tensor.double() for name, tensor in state.parameters.items()}
    stack = Stack(
        tuple(contribution.rank for contribution in ordered),
        tuple(contribution.samples for contribution in ordered),
        counted,
        {name: _stacked(name, before, ordered, counted) for name, before in previous.items()},
    )
    fused = _rounded(_asked(fusion, previous, stack), state.parameters)
    sound = counted.any(0)
    for tensor in fused.values():
        sound = sound & _finite(tensor)
    return FusionState(
        {name: torch.where(column(sound, old), fused[name], old) for name, old in state.parameters.items()},
        {
            name: pooled(
                [before, *(ordered[k].growth.statistics[name].where(counted[k] & sound) for k in range(len(ordered)))]
            )
            for name, before in state.statistics.items()
        },
        state.transitions + torch.stack([contribution.growth.transitions for contribution in ordered]).sum(0),
        sound,
    )


def _asked(fusion: Fusion, previous: Parameters, stack: Stack) -> Parameters:
    try:
        return fusion.fuse(previous, stack)
    except PodracerError:
        raise
    except Exception as error:  # what an installed package does is not ours to foresee
        message = f"fusion {type(fusion).__name__} raised {type(error).__name__}: {error}"
        raise InvalidInput(message, reason="BROKEN_FUSION") from error


def _counts(growth: FusionState) -> Tensor:
    """bool [M]."""
    sound = growth.active.clone()
    for tensor in growth.parameters.values():
        sound &= _finite(tensor)
    for moments in growth.statistics.values():
        sound &= moments.finite
    return sound


def _finite(tensor: Tensor) -> Tensor:
    """bool [M] of [M, …]."""
    return tensor.isfinite().flatten(1).all(1) if tensor.dim() > 1 else tensor.isfinite()


def _stacked(name: str, previous: Tensor, contributions: Sequence[Contribution], counted: Tensor) -> Tensor:
    parts = [contribution.growth.parameters[name].double() for contribution in contributions]
    # Never by multiplication: a diverged member's NaN must not touch the others.
    return torch.stack([torch.where(column(counted[k], part), part, previous) for k, part in enumerate(parts)])


def _rounded(fused: Parameters, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In the dtypes of the networks. Raises InvalidInput for other names or shapes."""
    own = {name: list(tensor.shape) for name, tensor in model.items()}
    given = {name: list(tensor.shape) for name, tensor in fused.items()}
    differing = sorted(name for name in {*own, *given} if own.get(name) != given.get(name))
    if differing:
        name = differing[0]
        raise InvalidInput(
            f"the fusion returned {name} of shape {given.get(name, 'none')}, expected {own.get(name, 'none')}",
            reason="BROKEN_FUSION",
        )
    return {name: fused[name].to(tensor.dtype) for name, tensor in model.items()}


@dataclass(frozen=True, slots=True)
class Decision:
    """How an epoch of the lead ends.

    fused     None: too few had brought anything, nothing was fused, and all train on from where they are
    answered  the ranks, the lead's among them, whose contributions this settles
    """

    fused: Fused | None
    answered: tuple[int, ...]


class FusionTable:
    """Followers join and leave as they like; the lead's own contribution opens a fusion, `decide` closes it.

    - The lead waits until the deadline for the learners that are at the table when its own epoch ends, and for no
      others.
    - A learner that misses a deadline is late, and not waited for again before it has brought something: one that
      is ten times slower costs one deadline in ten epochs.
    - What is brought to a fusion that has taken place is not used. Its learner gets the present state instead, from
      which it goes on: it is at the table again.
    - With less than the quorum nothing is fused. What was brought is settled: its learner trains on, and brings more to
      the next. The quorum is of those at the table: a learner that has left does not count.

    All calls come from under one lock of the caller's. `now` is in seconds of any clock that only goes on.
    """

    def __init__(self, fusion: Fusion, state: FusionState, *, quorum: int = 0, deadline_s: float) -> None:
        """`state`: from which all begin. quorum: learners, the lead among them; 0: more than half."""
        self._fusion, self._quorum, self._deadline_s = fusion, quorum, deadline_s
        self._present = Fused(0, state, ())
        self._joined: set[int] = set()
        self._late: set[int] = set()
        self._awaited: set[int] = set()
        self._brought: dict[int, Contribution] = {}
        self._deadline: float | None = None

    @property
    def present(self) -> Fused:
        """The newest fused state, or the initial one, for a learner that joins."""
        return self._present

    @property
    def brought(self) -> frozenset[int]:
        """Ranks whose contributions wait to be fused."""
        return frozenset(self._brought)

    def join(self, rank: int) -> None:
        """A follower goes on from `present`. What it had brought before is forgotten."""
        self.leave(rank)
        self._joined.add(rank)

    def leave(self, rank: int) -> None:
        """A follower has gone, and what it brought with it. Leaving twice is harmless."""
        for ranks in (self._joined, self._late, self._awaited):
            ranks.discard(rank)
        self._brought.pop(rank, None)

    def bring(self, contribution: Contribution) -> Fused | None:
        """A follower's contribution. None: it is kept for the fusion to come; else it came too late, and its learner
        goes on from what is returned. Raises InvalidInput for one that cannot be right."""
        rank, due = contribution.rank, self._present.epoch + 1
        if rank not in self._joined:
            raise InvalidInput(f"rank {rank} brings a contribution but has not joined", reason="BAD_FUSION")
        if not 0 < contribution.epoch <= due or rank in self._brought:
            raise InvalidInput(
                f"rank {rank} brings a contribution to fusion {contribution.epoch}, expected one to fusion {due}",
                reason="BAD_FUSION",
            )
        self._late.discard(rank)
        if contribution.epoch < due:
            self._awaited.discard(rank)
            return self._present
        self._present.state.require_like(contribution.growth)
        self._brought[rank] = contribution
        return None

    def open(self, contribution: Contribution, now: float, until: float = math.inf) -> None:
        """The lead has trained its epoch, and waits for the others from now on: to the deadline, to `until` at most."""
        self._brought[LEAD] = contribution
        self._awaited = self._joined - self._late - set(self._brought)
        self._deadline = min(now + self._deadline_s, until)

    def remaining_s(self, now: float) -> float:
        """Until the deadline; 0 where nothing is open."""
        return 0.0 if self._deadline is None else max(self._deadline - now, 0.0)

    def decide(self, now: float, *, at_once: bool = False) -> Decision | None:
        """The decision; None while a learner is awaited or no fusion is open. `at_once` ends the wait, as the deadline
        does."""
        if self._deadline is None:
            return None
        missing = self._awaited - set(self._brought)
        if missing and now < self._deadline and not at_once:
            return None
        self._late |= missing
        brought, self._brought = self._brought, {}
        self._awaited, self._deadline = set(), None
        answered = tuple(sorted(brought))
        learners = len(self._joined) + 1
        if len(brought) < min(self._quorum or learners // 2 + 1, learners):
            return Decision(None, answered)
        state = fuse(self._fusion, self._present.state, list(brought.values()))
        self._present = Fused(self._present.epoch + 1, state, answered)
        return Decision(self._present, answered)
