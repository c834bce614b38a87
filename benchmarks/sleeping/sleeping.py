"""An environment of a user that waits for something else in each step: a network, a device, a
slower simulator."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

STEP_S = 0.002
EPISODE_STEPS = 100


class Sleeping(gymnasium.Env[np.ndarray[Any, Any], int]):
    """Sleeps two milliseconds a step; the reward says whether the action was the sign of the first
    observation."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_S)
        self._steps += 1
        reward = float(action == int(self._seen[0] > 0))
        return self._observe(), reward, False, self._steps >= EPISODE_STEPS, {}

    def _observe(self) -> np.ndarray[Any, Any]:
        self._seen = self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32)
        return self._seen
