"""The lead's side of a fusion, without a network or a clock: the learners' contributions, and the
result.

`fuse` computes the new state from contributions; `FusionTable` decides when, by quorum and
deadline."""

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
    """The new state, from contributions that all began from `state`. Their order does not matter.

    A learner's member counts if it is active and its contribution is finite. Otherwise its
    parameters and statistics are left out. A member that counts for no learner keeps its state and
    becomes inactive, and so does one for which the fusion returns a value that is not finite. A
    member that counts for some learner is active for all, even where it had diverged. Transitions
    always count: they have been taken.

    Raises InvalidInput for contributions of another cohort, and for a fusion that raises or returns
    other parameters than it was given."""
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
        {
            name: torch.where(column(sound, old), fused[name], old)
            for name, old in state.parameters.items()
        },
        {
            name: pooled(
                [
                    before,
                    *(
                        ordered[k].growth.statistics[name].where(counted[k] & sound)
                        for k in range(len(ordered))
                    ),
                ]
            )
            for name, before in state.statistics.items()
        },
        state.transitions
        + torch.stack([contribution.growth.transitions for contribution in ordered]).sum(0),
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
    """Whether all values of each member are finite: [M, …] -> bool [M]."""
    return tensor.isfinite().flatten(1).all(1) if tensor.dim() > 1 else tensor.isfinite()


def _stacked(
    name: str, previous: Tensor, contributions: Sequence[Contribution], counted: Tensor
) -> Tensor:
    parts = [contribution.growth.parameters[name].double() for contribution in contributions]
    # Never by multiplication: a diverged member's NaN must not touch the others.
    return torch.stack(
        [torch.where(column(counted[k], part), part, previous) for k, part in enumerate(parts)]
    )


def _rounded(fused: Parameters, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters in the dtypes of the networks. Raises InvalidInput for other names or
    shapes."""
    own = {name: list(tensor.shape) for name, tensor in model.items()}
    given = {name: list(tensor.shape) for name, tensor in fused.items()}
    differing = sorted(name for name in {*own, *given} if own.get(name) != given.get(name))
    if differing:
        name = differing[0]
        raise InvalidInput(
            f"the fusion returned {name} of shape {given.get(name, 'none')}, expected "
            f"{own.get(name, 'none')}",
            reason="BROKEN_FUSION",
        )
    return {name: fused[name].to(tensor.dtype) for name, tensor in model.items()}


@dataclass(frozen=True, slots=True)
class Decision:
    """The end of an epoch of the lead.

    fused     None: too few contributions, nothing was fused, and all learners continue with their
              own state
    answered  ranks whose contributions this settles, the lead's included
    """

    fused: Fused | None
    answered: tuple[int, ...]


class FusionTable:
    """The contributions to a fusion. The lead's own contribution opens it, `decide` closes it;
    followers may join and leave at any time.

    - The lead waits until the deadline, only for learners that are joined when its own epoch ends.
    - A learner that misses a deadline is late, and is not awaited again before its next
      contribution: one that is ten times slower costs one deadline in ten epochs.
    - A contribution to a past fusion is not used. Its learner gets the present state, continues
      from it, and is no longer late.
    - With less than the quorum nothing is fused. The contributions are settled: their learners
      train on and contribute to the next fusion. The quorum counts joined learners only.

    The caller holds one lock for all calls. `now` is in seconds of any monotonic clock.
    """

    def __init__(
        self, fusion: Fusion, state: FusionState, *, quorum: int = 0, deadline_s: float
    ) -> None:
        """`state`: the initial state of all learners. quorum: learners, the lead included; 0: more
        than half."""
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
        """A follower continues from `present`. Its former contribution is dropped."""
        self.leave(rank)
        self._joined.add(rank)

    def leave(self, rank: int) -> None:
        """A follower leaves, and its contribution is dropped. Leaving twice is harmless."""
        for ranks in (self._joined, self._late, self._awaited):
            ranks.discard(rank)
        self._brought.pop(rank, None)

    def bring(self, contribution: Contribution) -> Fused | None:
        """Take a follower's contribution. Returns None if it counts for the coming fusion; else it
        is too late, and its learner continues from the returned state. Raises InvalidInput for an
        invalid one."""
        rank, due = contribution.rank, self._present.epoch + 1
        if rank not in self._joined:
            raise InvalidInput(
                f"rank {rank} brings a contribution but has not joined", reason="BAD_FUSION"
            )
        if not 0 < contribution.epoch <= due or rank in self._brought:
            raise InvalidInput(
                f"rank {rank} brings a contribution to fusion {contribution.epoch}, expected one "
                f"to fusion {due}",
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
        """The lead has trained its epoch and waits for the others until the deadline, at most until
        `until`."""
        self._brought[LEAD] = contribution
        self._awaited = self._joined - self._late - set(self._brought)
        self._deadline = min(now + self._deadline_s, until)

    def remaining_s(self, now: float) -> float:
        """Seconds until the deadline; 0 if no fusion is open."""
        return 0.0 if self._deadline is None else max(self._deadline - now, 0.0)

    def decide(self, now: float, *, at_once: bool = False) -> Decision | None:
        """The decision; None while a learner is awaited or no fusion is open. `at_once` ends the
        wait, as the deadline does."""
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
