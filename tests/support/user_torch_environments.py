"""Batched environments as users write them in torch, good and bad; the tests start them in child
processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from podracer_core.environments import State, Step, TorchEnvironment, VecEnvironment
from podracer_core.random_numbers import uniform


class Walk(TorchEnvironment):
    """Two functions: places in [-1, 1]², moved by the action; ends beyond a radius of 1.2. State =
    observation."""

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 9,
        trouble: str = "",
    ) -> None:
        if trouble == "construction":
            raise ValueError("no map for this maze")
        place = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
        super().__init__(
            num_envs,
            device,
            place,
            gymnasium.spaces.Box(-1, 1, (2,), np.float32),
            max_episode_steps,
        )
        self._trouble = trouble
        self.can_diverge = trouble != "lying about NaN"
        self.deterministic_evaluation = trouble == "back-test"
        self.preparation = "the map is a back-test" if trouble == "back-test" else ""

    def initial_state(self, key: Tensor) -> State:
        return {"place": uniform(key, torch.arange(2)[:, None]) * 2 - 1}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        place = state["place"] + 0.3 * action.t()
        match self._trouble:
            case "raise":
                raise RuntimeError("the maze has no exit")
            case "raise when right" if bool((action[:, 0] > 0.99).any()):
                raise RuntimeError("the maze has no exit")
            case "NaN" | "lying about NaN":
                place[:, action[:, 0] > 0.99] = torch.nan
        return {"place": place}, -place.square().sum(0), place.square().sum(0) > 1.44


class Cards(VecEnvironment):
    """Written without our frame: ignores `out`, has masks, and counts. Action i is allowed where
    (count + i) % 3."""

    def __init__(
        self, num_envs: int, device: torch.device | str = "cpu", trouble: str = ""
    ) -> None:
        if trouble == "forgets super":
            return
        self.num_envs, self.device = num_envs, torch.device(device)
        self.observation_space = gymnasium.spaces.Box(0, 255, (1,), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.max_episode_steps = 4
        self.has_action_mask = True
        self._trouble = trouble
        self._count = torch.zeros(num_envs, dtype=torch.int64)

    @property
    def action_mask(self) -> Tensor:
        return (self._count[:, None] + torch.arange(3)) % 3 != 0

    def reset(self, seeds: Tensor) -> Tensor:
        self._count = seeds % 4
        return self._observe()

    def step(self, action: Tensor, out: Step | None = None) -> Any:
        if self._trouble == "tuple":
            return self._observe(), torch.zeros(self.num_envs)
        assert self.action_mask.gather(1, action[:, None]).all()
        self._count = self._count + 1
        final = self._observe()
        truncated = self._count >= 4
        self._count = self._count * ~truncated
        nothing = torch.zeros(self.num_envs, dtype=torch.bool)
        reward = torch.zeros(self.num_envs if self._trouble != "shape" else 1)
        if self._trouble == "NaN":
            reward[-1] = torch.nan
        return Step(self._observe(), reward, nothing, truncated, final, self.action_mask, ~nothing)

    def state(self) -> dict[str, Tensor]:
        return {"count": self._count.sum() if self._trouble == "state" else self._count}

    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        self._count = state["count"]
        return self._observe()

    def _observe(self) -> Tensor:
        return self._count[:, None].to(torch.uint8)
