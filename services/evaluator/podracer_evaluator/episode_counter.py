"""Counts episodes from several threads."""

from __future__ import annotations

import threading

__all__ = ["EpisodeCounter"]


class EpisodeCounter:
    """Episodes since the start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0

    def add(self, episodes: int) -> None:
        with self._lock:
            self.total += episodes
