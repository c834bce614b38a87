"""An environment that a policy learns within a few rollouts: say where the light is."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Lights(gymnasium.Env[np.ndarray, np.int64]):
    """Shows which of two lights is on; the action that names it gives 1. An episode has eight
    steps."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, reward: float = 1.0, render_mode: str | None = None) -> None:
        self.reward, self.render_mode = reward, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.left = 8
        return self._next(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        right = action == self.light
        self.left -= 1
        return self._next(), self.reward * float(right), self.left == 0, False, {}

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), 100 * self.light, np.uint8)

    def _next(self) -> np.ndarray:
        self.light = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.light]


class Times(Lights):
    """Shows a time of the world's clock, in seconds; the light is on in each other minute."""

    observation_space = gymnasium.spaces.Box(0, 2**40, (1,), np.int64)
    clock = 1_700_000_000

    def _next(self) -> np.ndarray:
        second = int(self.np_random.integers(120))
        self.light = second // 60
        return np.array([Times.clock + second])


FAST = {
    "horizon": 16,
    "minibatch_size": 64,
    "epochs": 4,
    "learning_rate": 0.01,
    "hidden_sizes": [16],
}
"""Hyperparameters."""
