"""The admission of followers while this learner leads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from podracer.learner.v1 import learner_service_pb2
from podracer_core.errors import PreconditionFailed
from podracer_platform.rpc import Context, SessionSlots

if TYPE_CHECKING:
    from podracer_learner.fusion.lead import FusionLead


NOT_A_LEAD = "NOT_A_LEAD"
"""Reason of the refusal while this learner leads no fusion."""

MAX_STREAMS = 96
"""Streams of followers, including lost ones that this side has not noticed yet."""


class FollowerRegistry:
    """Serves Fuse for the current round."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lead: FusionLead | None = None
        self._slots = SessionSlots(MAX_STREAMS)

    @contextmanager
    def serving(self, lead: FusionLead) -> Iterator[FusionLead]:
        """Admit followers to this lead; at the end tell them that the round is over."""
        with self._lock:
            self._lead = lead
        try:
            yield lead
        finally:
            with self._lock:
                self._lead = None
            lead.end("the lead's round is over")

    async def serve(
        self, requests: AsyncIterator[learner_service_pb2.FuseRequest], context: Context
    ) -> None:
        """A follower's stream. Raises PreconditionFailed (NOT_A_LEAD) while this learner leads no
        fusion."""
        with self._lock:
            lead = self._lead
        if lead is None:
            raise PreconditionFailed("this learner leads no fusion now", reason=NOT_A_LEAD)
        # late: it imports torch, as a lead has done
        from podracer_learner.fusion.lead import FollowerSession

        await self._slots.serve(partial(FollowerSession, lead), requests, context)

    def drain(self) -> None:
        """The process is about to stop: tell all followers."""
        self._slots.drain()
