"""What a process of benchmarks/returns.py is to train. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EPISODES = 10


@dataclass(frozen=True)
class ReturnsOrder:
    """Train one agent for each seed, on the recipe of `benchmarks/peers_ppo.py` with the same settings for all.

    steps            of each agent; the last rollout is finished
    every            steps between two looks
    threads          of torch and MuJoCo
    hyperparameters  of ours, in place of the recipe's
    """

    environment: str
    seeds: tuple[int, ...]
    steps: int
    every: int
    threads: int
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
