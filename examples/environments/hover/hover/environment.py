"""Hold a drone at a height."""

from __future__ import annotations

import gymnasium
import torch
from torch import Tensor

from podracer_core.environments import State, TorchEnvironment
from podracer_core.random_numbers import uniform

TIME_STEP = 0.05  # s


class Hover(TorchEnvironment):
    """The state and the observation are height (m, 0 is where it should be) and speed (m/s).

    The action is the thrust, from none to twice the weight. A step gives 1 less the distance, at
    least 0. A drone 3 m away is lost.

    gravity   m/s²
    """

    can_diverge = False  # the thrust is bounded, and episodes end soon

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 100,
        gravity: float = 9.81,
    ) -> None:
        observations = gymnasium.spaces.Box(-float("inf"), float("inf"), (2,))
        actions = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        super().__init__(num_envs, device, observations, actions, max_episode_steps)
        self.gravity = gravity

    def initial_state(self, key: Tensor) -> State:
        """Up to 1 m away, at up to 1 m/s."""
        return {"drone": torch.stack([uniform(key, 0) * 2 - 1, uniform(key, 1) * 2 - 1])}  # [2, K]

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        height, speed = state["drone"]
        thrust = (action[:, 0].clamp(-1.0, 1.0) + 1.0) * self.gravity
        speed = speed + (thrust - self.gravity) * TIME_STEP
        height = height + speed * TIME_STEP
        return (
            {"drone": torch.stack([height, speed])},
            (1 - height.abs()).clamp(min=0),
            height.abs() > 3,
        )
