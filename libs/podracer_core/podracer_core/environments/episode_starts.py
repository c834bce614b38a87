"""First states of the coming episodes, drawn ahead: on a CPU, where each small tensor operation
costs microseconds, drawing them one step's worth at a time would take longer than the physics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from podracer_core.random_numbers import derive_key

State = dict[str, Tensor]


class EpisodeStarts:
    """A ring of `DEPTH` episodes for each of N environments; slot j holds the next one whose number
    is j modulo DEPTH.

    An environment ends at most one episode a step, so a ring that is full serves DEPTH steps
    without looking. What it holds depends on (stream, episode) alone, so filling it early or late
    changes nothing."""

    DEPTH = 16

    def __init__(
        self,
        draw: Callable[[Tensor], State],
        observe: Callable[[State, Tensor], None],
        observation: Tensor,
    ) -> None:
        """`draw` makes states from keys [K], `observe` writes their observations; `observation` is
        one of N."""
        self._draw = draw
        self._observe = observe
        self._num_envs = observation.shape[0]
        self._observation = observation.new_empty(
            self._num_envs * self.DEPTH, *observation.shape[1:]
        )
        # Slot first, so that a start is read from one place: the slots that a step takes lie far
        # apart.
        self._state: State = {}
        self._filled = False
        # (environments, episodes) of the steps since the last filling
        self._taken: list[tuple[Tensor, Tensor]] = []

    def forget(self) -> None:
        """Forget everything: the streams have changed."""
        self._filled = False
        self._taken = []

    def take(
        self, rows: Tensor, episode: Tensor, stream: Tensor, state: State, observation: Tensor
    ) -> None:
        """Start the next episode of the environments `rows` [K].

        Counts `episode` [N] up, and writes into `state` (environment axis last) and `observation`
        [N, *obs]."""
        if not self._filled:
            self._fill(episode, stream)
        elif len(self._taken) == self.DEPTH:
            self._refill(stream)
        number = episode.index_select(0, rows).add_(1)
        episode.index_copy_(0, rows, number)
        self._taken.append((rows, number))
        slot = self._slot(rows, number)
        observation.index_copy_(0, rows, self._observation.index_select(0, slot))
        for name, value in state.items():
            value.movedim(-1, 0).index_copy_(0, rows, self._state[name].index_select(0, slot))

    def _slot(self, rows: Tensor, number: Tensor) -> Tensor:
        return number.bitwise_and(self.DEPTH - 1).add_(rows, alpha=self.DEPTH)

    def _fill(self, episode: Tensor, stream: Tensor) -> None:
        """Draw the next DEPTH episodes of every environment."""
        rows = torch.arange(self._num_envs).repeat_interleave(self.DEPTH)
        number = episode[:, None].add(torch.arange(1, self.DEPTH + 1)).flatten()
        self._draw_into_slots(rows, number, stream)
        self._filled = True

    def _refill(self, stream: Tensor) -> None:
        """Draw, into the slots taken since the last time, the episodes that come DEPTH later."""
        rows, numbers = (torch.cat(parts) for parts in zip(*self._taken, strict=True))
        self._taken = []
        self._draw_into_slots(rows, numbers.add_(self.DEPTH), stream)

    def _draw_into_slots(self, rows: Tensor, number: Tensor, stream: Tensor) -> None:
        slot = self._slot(rows, number)
        fresh = self._draw(derive_key(stream.index_select(0, rows), number))
        observation = self._observation.new_empty(slot.numel(), *self._observation.shape[1:])
        self._observe(fresh, observation)
        self._observation.index_copy_(0, slot, observation)
        for name, value in fresh.items():
            by_slot = value.movedim(-1, 0)
            if name not in self._state:
                with torch.inference_mode(False):  # made in it, it could not be written to outside
                    self._state[name] = by_slot.new_empty(
                        self._observation.shape[0], *by_slot.shape[1:]
                    )
            self._state[name].index_copy_(0, slot, by_slot)
