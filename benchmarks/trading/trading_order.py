"""What a process of trading_speed.py is to do, and how it takes its speed. Standard
library only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from peers.events import tell

WARM_UP_UPDATES = 2


@dataclass(frozen=True)
class TradingOrder:
    """PPO with the library's settings, or ours.

    arguments  of StockTrading-v0; the peers' accounts trade the same market by the same rules
    seconds    how long steps/s are measured
    """

    num_envs: int
    threads: int
    seed: int
    seconds: float
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Speedometer:
    """Tells `speed` once it has seen `seconds` of training. To be asked before every rollout."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._updates = seconds, -1
        self._began_at, self._steps_before = 0.0, 0

    def is_over(self, env_steps: int) -> bool:
        """env_steps: taken so far."""
        self._updates += 1
        now = time.perf_counter()
        if self._updates <= WARM_UP_UPDATES:
            self._began_at, self._steps_before = now, env_steps
            return False
        if now - self._began_at < self._seconds:
            return False
        tell(
            "speed", env_steps_per_second=(env_steps - self._steps_before) / (now - self._began_at)
        )
        return True
