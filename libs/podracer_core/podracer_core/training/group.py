"""Learners that sit in one torch.distributed group fuse without a lead: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as distributed
from torch import Tensor

from podracer_core.errors import InvalidInput, Unavailable
from podracer_core.fusion.fuse import fuse
from podracer_core.fusion.fusion import Fusion
from podracer_core.fusion.state import Contribution, Fused, FusionState, Moments
from podracer_core.training.epochs import FusionTransport


class GroupFusion(FusionTransport):
    """Every learner gathers what all bring and fuses by itself, in the order of ranks: all end with the same bits.

    Nobody is left out and nobody joins: who is lost ends the group, and who is slow is waited for, up to the group's
    own time-out. Where that is not wanted, a lead and its followers exchange by gRPC.
    """

    def __init__(self, fusion: Fusion, state: FusionState, group: distributed.ProcessGroup | None = None) -> None:
        """`state`: this learner's own, on the device that the group works on. All go on from rank 0's, `present`.

        Raises InvalidInput where learners train different cohorts, Unavailable where one is lost.
        """
        self._fusion, self._group = fusion, group
        self._rank, self._size = distributed.get_rank(group), distributed.get_world_size(group)
        self._require_one_cohort(state)
        self._present = Fused(0, self._gathered(Contribution(self._rank, 0, 0, state))[0].growth, ())

    @property
    def present(self) -> Fused:
        """The state that has been fused last: for `EpochFusion.begin`."""
        return self._present

    def exchange(self, contribution: Contribution) -> Fused:
        """See `FusionTransport`. Raises Unavailable where a learner is lost."""
        state = fuse(self._fusion, self._present.state, self._gathered(contribution))
        self._present = Fused(contribution.epoch, state, tuple(range(self._size)))
        return self._present

    def _require_one_cohort(self, state: FusionState) -> None:
        kinds = [f"{name} {kind}" for name, kind in state.kinds().items()]
        digest = hashlib.sha256("\n".join(kinds).encode()).digest()[:7]
        own = torch.tensor([int.from_bytes(digest, "big")], device=state.transitions.device)
        others = [rank for rank, digest in enumerate(self._all(own)) if not torch.equal(digest, own)]
        if others:
            raise InvalidInput(f"the learners of ranks {others} train another cohort", reason="COHORT_MISMATCH")

    def _gathered(self, contribution: Contribution) -> list[Contribution]:
        """What all ranks bring, in their order: as one message of bytes from each."""
        samples = torch.tensor([contribution.samples], device=contribution.growth.transitions.device)
        parts = [samples, *_tensors(contribution.growth)]
        brought = []
        for rank, data in enumerate(self._all(torch.cat([_bytes(part) for part in parts]))):
            pieces = torch.split(data, [part.nbytes for part in parts])
            count, *tensors = [_from_bytes(piece, part) for piece, part in zip(pieces, parts, strict=True)]
            growth = _with_tensors(contribution.growth, tensors)
            brought.append(Contribution(rank, contribution.epoch, int(count), growth))
        return brought

    def _all(self, own: Tensor) -> list[Tensor]:
        everybodys = [torch.empty_like(own) for _ in range(self._size)]
        try:
            distributed.all_gather(everybodys, own, group=self._group)
        except RuntimeError as error:  # what the backends raise for a peer that is gone, and for a time-out
            raise Unavailable(f"a learner of the group is lost: {error}", reason="LEARNER_LOST") from error
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


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _from_bytes(data: Tensor, model: Tensor) -> Tensor:
    # Of its own memory: a view would begin at any byte, and a float64 may not.
    return data.clone().view(model.dtype).view(model.shape)
