"""First states of the coming episodes, drawn ahead: on a CPU, where each small tensor operation costs microseconds,
drawing them one step's worth at a time would take longer than the physics.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from podracer_core.random_numbers import derive_key

__all__ = ["EpisodeStarts"]

State = dict[str, Tensor]


class EpisodeStarts:
    """A ring of `DEPTH` episodes for each of N environments; slot j holds the next one whose number is j modulo DEPTH.

    An environment ends at most one episode a step, so a ring that is full serves DEPTH steps without looking. What it
    holds depends on (stream, episode) alone, so filling it early or late changes nothing.
    """

    DEPTH = 16

    def __init__(
        self,
        draw: Callable[[Tensor], State],
        observe: Callable[[State, Tensor], None],
        observation: Tensor,
    ) -> None:
        """`draw` makes states from keys [K], `observe` writes their observations; `observation` is one of N."""
        self._draw = draw
        self._observe = observe
        slots = observation.shape[0] * self.DEPTH
        self._first_observation = observation.new_empty(slots, *observation.shape[1:])
        self._state: State = {}
        self._episode = torch.full((slots,), -1, dtype=torch.int64)
        self._slot = torch.arange(slots) % self.DEPTH
        self._steps_left = 0

    def forget(self) -> None:
        """Forget everything: the streams have changed."""
        self._episode.fill_(-1)
        self._steps_left = 0

    def take(self, rows: Tensor, episode: Tensor, stream: Tensor, state: State, observation: Tensor) -> None:
        """Start the next episode of the environments `rows` [K].

        Counts `episode` [N] up, and writes into `state` (environment axis last) and `observation` [N, *obs].
        """
        if self._steps_left == 0:
            self._fill(episode, stream)
            self._steps_left = self.DEPTH
        self._steps_left -= 1
        number = episode.index_select(0, rows).add_(1)
        episode.index_copy_(0, rows, number)
        slot = number.bitwise_and_(self.DEPTH - 1).add_(rows, alpha=self.DEPTH)
        observation.index_copy_(0, rows, self._first_observation.index_select(0, slot))
        for name, value in state.items():
            value.index_copy_(-1, rows, self._state[name].index_select(-1, slot))

    def _fill(self, episode: Tensor, stream: Tensor) -> None:
        """Draw what the slots should hold and do not: the episodes after `episode`."""
        following = episode.repeat_interleave(self.DEPTH).add_(1)
        following += (self._slot - following).bitwise_and_(self.DEPTH - 1)
        stale = (following != self._episode).nonzero().squeeze(1)
        number = following.index_select(0, stale)
        self._episode.index_copy_(0, stale, number)
        owner = stale.div(self.DEPTH, rounding_mode="floor")
        fresh = self._draw(derive_key(stream.index_select(0, owner), number))
        observation = self._first_observation.new_empty(stale.numel(), *self._first_observation.shape[1:])
        self._observe(fresh, observation)
        self._first_observation.index_copy_(0, stale, observation)
        for name, value in fresh.items():
            if name not in self._state:
                self._state[name] = value.new_empty(*value.shape[:-1], self._episode.numel())
            self._state[name].index_copy_(-1, stale, value)
