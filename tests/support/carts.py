"""A simulator behind rsl_rl's interface, whose critic sees more than the actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from podracer_core.environments import RslRlEnvironment

LIMIT, FAR = 5, 0.9
ACTOR_SIZE, WHOLE = 3, 7


class Carts:
    """A `VecEnv` of points that are pushed, and restarted where they have come too far or the time
    is over."""

    num_actions, max_episode_length = 2, LIMIT

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.num_envs, self.device = num_envs, device
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.place = torch.zeros(num_envs, 2, device=device)
        self.seeds: list[int] = []

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> None:
        self.place.fill_(0.1)
        self.episode_length_buf.zero_()

    def get_observations(self) -> dict[str, Tensor]:
        height = self.place.sum(1, keepdim=True)
        seen = torch.cat([self.place, height], 1)
        return {"critic": torch.cat([height, self.place.square(), height], 1), "policy": seen}

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Mapping[str, Any]]:
        self.place += 0.2 * action.clamp_(-1, 1)
        self.episode_length_buf += 1
        far, over = self.place.norm(dim=1) > FAR, self.episode_length_buf >= LIMIT
        reward, done = 1 - self.place.square().sum(1), far | over
        self.place.masked_fill_(done.unsqueeze(1), 0.1)
        self.episode_length_buf.masked_fill_(done, 0)
        return self.get_observations(), reward, done.long(), {"time_outs": over & ~far, "log": {}}


class CartsHere(RslRlEnvironment):
    """The carts as a batch."""

    graph_safe = True

    def make(self, num_envs: int, device: torch.device, **arguments: Any) -> Carts:
        return Carts(num_envs, device)
