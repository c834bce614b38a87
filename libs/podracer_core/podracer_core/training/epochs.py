"""Several learners of one cohort: at the end of each epoch their parameters are fused."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.algorithms.sharing import Sharing
from podracer_core.fusion.state import Contribution, Fused
from podracer_core.telemetry.metrics import FUSION


class FusionTransport(ABC):
    """How a learner's contribution meets the others'."""

    @abstractmethod
    def exchange(self, contribution: Contribution) -> Fused | None:
        """Bring it, and wait for what comes of it; None: nothing was fused, train on and bring more.

        A learner that was left out gets a fusion with a number ahead of its own, and goes on from there.
        """

    def closes(self, last: bool) -> bool:
        """Whether an epoch ends with this update however short it is, since the round does; `last`: by its plan.

        So it is for who speaks for the agent: what others have brought to that epoch would else be lost.
        """
        return False

    def finish(self) -> None:  # noqa: B027 - most have nobody to tell
        """This learner trains no more in this round."""


class EpochFusion:
    """One learner's side: counts its epochs, brings what it has trained, and takes over what has come of it."""

    def __init__(
        self,
        algorithm: Algorithm,
        sharing: Sharing,
        transport: FusionTransport,
        rank: int,
        interval_updates: int = 0,
    ) -> None:
        """`sharing`: what `algorithm.share(rank)` gave. interval_updates: between two fusions; 0: an epoch, as the
        algorithm counts them. The first one of agents that have not learned yet is an epoch's first update in any case:
        until then there are no statistics to act on, and what is learned without them is lost with them."""
        self.sharing = sharing
        self._algorithm, self._transport, self._rank, self._interval = algorithm, transport, rank, interval_updates
        self.epoch = 0
        self._passed = self._counted()
        self._is_first = algorithm.epochs == 0

    def begin(self, fused: Fused) -> None:
        """Go on from there: a learner that joins others."""
        self.sharing.load(fused.state)
        self.epoch = fused.epoch
        self._is_first = self._is_first and not fused.epoch

    def finish(self) -> None:
        """No update follows in this round: nobody has to wait for this learner's contribution, and what it has seen
        since the last fusion counts by itself."""
        self._transport.finish()
        self.sharing.settle()

    def after_update(self, *, last: bool = False) -> Tensor | None:
        """To be called after every update, before anybody is given its weights. `last`: the round is over with it.

        Returns by how much the agents' environment steps, int64 [M], are more than this learner's own: the others' that
        have been fused, less its own where it was left out. None where nothing was fused.
        """
        if not (self._is_due() or self._transport.closes(last)):
            return None
        growth = self.sharing.growth()
        samples = int(growth.transitions.sum())
        with FUSION.timed():
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
