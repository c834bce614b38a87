"""Several learners of one cohort: at the end of each epoch their parameters are fused."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.algorithms.sharing import Sharing
from podracer_core.fusion.state import Contribution, Fused


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
        fused = self._transport.exchange(Contribution(self._rank, self.epoch + 1, samples, growth))
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
