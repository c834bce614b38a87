"""Wakes the watchers when a ranking has changed, and when the server drains."""

from __future__ import annotations

import asyncio


class Changes:
    """A notification for all watchers."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.is_draining = False

    def next_change(self) -> asyncio.Event:
        """An event that the first `ring` after this call sets. Take it before reading the state, to
        miss no change."""
        return self._event

    def ring(self) -> None:
        """Report a change to all watchers."""
        self._event.set()
        self._event = asyncio.Event()

    def drain(self) -> None:
        """The server is about to end."""
        self.is_draining = True
        self.ring()
