"""How long to wait before something is done again, by name: longer each time."""

from __future__ import annotations

from collections.abc import Container

from podracer_core.rpc.backoff import Backoff

__all__ = ["Waits"]

FIRST_S, LONGEST_S = 1.0, 60.0
STEADY_S = 120.0
"""Who has been well for so long begins anew."""


class Waits:
    """Until when, in seconds of a clock of the caller's."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[Backoff, float]] = {}

    def is_over(self, name: str, now: float) -> bool:
        return name not in self._waits or now >= self._waits[name][1]

    def prolong(self, name: str, now: float) -> None:
        """It has failed once more."""
        backoff, until = self._waits.get(name, (Backoff(FIRST_S, LONGEST_S, jitter=0.5), now))
        if now - until > STEADY_S:
            backoff.reset()
        self._waits[name] = backoff, now + next(backoff)

    def forget_others(self, names: Container[str]) -> None:
        self._waits = {name: each for name, each in self._waits.items() if name in names}
