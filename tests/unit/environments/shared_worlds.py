"""Environments whose worlds disturb each other in one process, or cannot be there twice."""

from __future__ import annotations

import os
import random
import socket
from typing import Any

import gymnasium
import numpy as np

PLACE = {"x": 0.0}  # of all worlds of this process


class Walk(gymnasium.Env[Any, Any]):
    """Walk to 0; each world has its own place."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.place = {"x": 0.0}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.place["x"] = 9, float(self.np_random.uniform(-1, 1))
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place["x"] += 0.2 if action else -0.2
        self.left -= 1
        return self._seen(), -abs(self.place["x"]), False, self.left == 0, {}

    def _seen(self) -> Any:
        return np.array([self.place["x"]], np.float32)


class Shared(Walk):
    """As a simulator whose functions act on the process's only world."""

    def __init__(self) -> None:
        self.place = PLACE


class OnlyOne(Walk):
    """As a simulator that exists once in a process."""

    is_open = False

    def __init__(self) -> None:
        super().__init__()
        if OnlyOne.is_open:
            raise RuntimeError("a simulation is already running in this process")
        OnlyOne.is_open = True

    def close(self) -> None:
        OnlyOne.is_open = False


class Unseeded(Walk):
    """Ignores its seed, so nothing can be said of it."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=random.randrange(1 << 30))


class Numbered(Walk):
    """Owns a port, as far as others of its kind are concerned; shows its number and that of its
    process."""

    def __init__(self, environment_index: int) -> None:
        super().__init__()
        self.numbers = environment_index, int(os.environ["PODRACER_ENVIRONMENT_INDEX"])
        self.port = socket.socket(socket.AF_UNIX)
        self.port.bind(f"\0podracer-test-{os.environ['NUMBERED']}-{environment_index}")

    def _seen(self) -> Any:
        return np.array([self.numbers[0] * 1000 + self.numbers[1]], np.float32)

    def close(self) -> None:
        self.port.close()
