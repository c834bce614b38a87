"""Several learners of one cohort: at the end of each epoch their parameters are fused.

Learners of one torch.distributed group need no lead (`GroupFusion`): gloo on CPUs, NCCL on GPUs.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.distributed as distributed
from torch import Tensor

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.algorithms.sharing import Sharing
from podracer_core.errors import InvalidInput, Unavailable
from podracer_core.fusion.fuse import fuse
from podracer_core.fusion.fusion import Fusion
from podracer_core.fusion.state import Contribution, Fused, FusionState, Moments
from podracer_core.telemetry.metrics import FUSION


class FusionTransport(ABC):
    """Exchanges a learner's contribution with the others'."""

    @abstractmethod
    def exchange(self, contribution: Contribution) -> Fused | None:
        """Send the contribution and wait for the fusion. None: nothing was fused; continue training
        and contribute more later.

        A learner that was left out gets a fusion with a number ahead of its own, and continues from
        there."""

    def closes(self, last: bool) -> bool:
        """Whether an epoch ends with this update because the round ends; `last`: by its plan.

        So it is for the lead: contributions of others to that epoch would else be lost.
        """
        return False

    def finish(self) -> None:  # noqa: B027 - optional
        """This learner has ended its training in this round."""


class EpochFusion:
    """One learner's side: counts its epochs, sends contributions, and loads fused states."""

    def __init__(
        self,
        algorithm: Algorithm,
        sharing: Sharing,
        transport: FusionTransport,
        rank: int,
        interval_updates: int = 0,
    ) -> None:
        """`sharing`: from `algorithm.share(rank)`. interval_updates: between two fusions; 0: an
        epoch of the algorithm. The first epoch of untrained agents always has one update: before it
        there are no normalization statistics, and training without them is lost."""
        self.sharing = sharing
        self._algorithm = algorithm
        self._transport = transport
        self._rank = rank
        self._interval = interval_updates
        self.epoch = 0
        self._passed = self._counted()
        self._is_first = algorithm.epochs == 0

    def begin(self, fused: Fused) -> None:
        """Load the state of the others that this learner joins."""
        self.sharing.load(fused.state)
        self.epoch = fused.epoch
        self._is_first = self._is_first and not fused.epoch

    def finish(self) -> None:
        """Tell the others that no update follows in this round: they need not wait for this
        learner's contribution, and its samples since the last fusion count by themselves."""
        self._transport.finish()
        self.sharing.settle()

    def after_update(self, *, last: bool = False) -> Tensor | None:
        """Call it after every update, before the weights are given out. `last`: it is the round's
        last update.

        Returns the difference of the agents' environment steps to this learner's own, int64 [M]:
        the others' fused steps, less its own if it was left out. None if nothing was fused."""
        if not (self._is_due() or self._transport.closes(last)):
            return None
        growth = self.sharing.growth()
        samples = int(growth.transitions.sum())
        with FUSION.timed():
            fused = self._transport.exchange(
                Contribution(self._rank, self.epoch + 1, samples, growth)
            )
        self._passed = self._counted()
        if fused is None:
            if self._transport.closes(last):
                self.sharing.settle()
            return None
        own = self.sharing.transitions
        self.begin(fused)
        return fused.state.transitions.to(own.device) - own

    def _is_due(self) -> bool:
        if self._is_first:
            return self._algorithm.epochs > 0
        return self._counted() - self._passed >= (self._interval or 1)

    def _counted(self) -> int:
        return self._algorithm.version if self._interval else self._algorithm.epochs


class GroupFusion(FusionTransport):
    """Every learner gathers all contributions and fuses them itself, in the order of ranks: all get
    the same bits.

    No learner is left out and none joins: a lost one ends the group, and a slow one is waited for,
    up to the group's own time-out. A lead and followers over gRPC have no such limits."""

    def __init__(
        self, fusion: Fusion, state: FusionState, group: distributed.ProcessGroup | None = None
    ) -> None:
        """`state`: this learner's own, on the group's device. All continue from rank 0's,
        `present`.

        Raises InvalidInput if learners train different cohorts, Unavailable if one is lost.
        """
        self._fusion, self._group = fusion, group
        self._rank, self._size = distributed.get_rank(group), distributed.get_world_size(group)
        self._require_one_cohort(state)
        self._present = Fused(
            0, self._gathered(Contribution(self._rank, 0, 0, state))[0].growth, ()
        )

    @property
    def present(self) -> Fused:
        """The last fused state, for `EpochFusion.begin`."""
        return self._present

    def exchange(self, contribution: Contribution) -> Fused:
        """See `FusionTransport`. Raises Unavailable if a learner is lost."""
        state = fuse(self._fusion, self._present.state, self._gathered(contribution))
        self._present = Fused(contribution.epoch, state, tuple(range(self._size)))
        return self._present

    def _require_one_cohort(self, state: FusionState) -> None:
        kinds = [f"{name} {kind}" for name, kind in state.kinds().items()]
        digest = hashlib.sha256("\n".join(kinds).encode()).digest()[:7]
        own = torch.tensor([int.from_bytes(digest, "big")], device=state.transitions.device)
        others = [
            rank for rank, digest in enumerate(self._all(own)) if not torch.equal(digest, own)
        ]
        if others:
            raise InvalidInput(
                f"the learners of ranks {others} train another cohort", reason="COHORT_MISMATCH"
            )

    def _gathered(self, contribution: Contribution) -> list[Contribution]:
        """The contributions of all ranks, in order: one message of bytes from each."""
        samples = torch.tensor(
            [contribution.samples], device=contribution.growth.transitions.device
        )
        parts = [samples, *_tensors(contribution.growth)]
        brought = []
        for rank, data in enumerate(
            self._all(torch.cat([part.contiguous().view(-1).view(torch.uint8) for part in parts]))
        ):
            pieces = torch.split(data, [part.nbytes for part in parts])
            count, *tensors = [
                _from_bytes(piece, part) for piece, part in zip(pieces, parts, strict=True)
            ]
            growth = _with_tensors(contribution.growth, tensors)
            brought.append(Contribution(rank, contribution.epoch, int(count), growth))
        return brought

    def _all(self, own: Tensor) -> list[Tensor]:
        everybodys = [torch.empty_like(own) for _ in range(self._size)]
        try:
            distributed.all_gather(everybodys, own, group=self._group)
        except RuntimeError as error:
            # what the backends raise for a peer that is gone, and for a time-out
            raise Unavailable(
                f"a learner of the group is lost: {error}", reason="LEARNER_LOST"
            ) from error
        return everybodys


def _tensors(state: FusionState) -> list[Tensor]:
    moments = [tensor for one in state.statistics.values() for tensor in one.tensors().values()]
    return [*state.parameters.values(), *moments, state.transitions, state.active]


def _with_tensors(model: FusionState, tensors: Sequence[Tensor]) -> FusionState:
    """A state of the names of `model` with `tensors`, in the order of `_tensors`."""
    rest = iter(tensors)
    parameters = {name: next(rest) for name in model.parameters}
    statistics = {name: Moments(next(rest), next(rest), next(rest)) for name in model.statistics}
    return FusionState(parameters, statistics, next(rest), next(rest))


def _from_bytes(data: Tensor, model: Tensor) -> Tensor:
    # Of its own memory: a view would begin at any byte, and a float64 may not.
    return data.clone().view(model.dtype).view(model.shape)
