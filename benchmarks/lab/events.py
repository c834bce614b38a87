"""How the processes that a benchmark starts tell it what they have come to. Standard library
only."""

from __future__ import annotations

import json
import sys
import time


def tell(event: str, **values: object) -> None:
    """Write one JSON line to stdout. The reader takes the time at which it arrives."""
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


class Speedometer:
    """Tells `speed` once it has seen `seconds` of training, after being asked `warm_up` times. To
    be asked before every rollout."""

    def __init__(self, seconds: float, warm_up: int = 3) -> None:
        self._seconds, self._warm_up = seconds, warm_up
        self._began_at, self._steps_before = 0.0, 0

    def is_over(self, env_steps: int) -> bool:
        """env_steps: taken so far."""
        now = time.perf_counter()
        if self._warm_up > 0:
            self._warm_up -= 1
            self._began_at, self._steps_before = now, env_steps
            return False
        seconds = now - self._began_at
        if seconds < self._seconds:
            return False
        tell("speed", env_steps_per_second=(env_steps - self._steps_before) / seconds)
        return True
