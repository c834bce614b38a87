"""What a process of benchmarks/returns.py is to train. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

EPISODES = 10
DEFAULT = "default"


@dataclass(frozen=True)
class ReturnsOrder:
    """Train one agent for each seed, on the recipe of `benchmarks/peers_ppo.py` with the same
    settings for all.

    steps     of each agent; the last rollout is finished
    every     steps between two looks
    threads   of torch and MuJoCo
    variant   of ours: see `returns_variants`
    """

    environment: str
    seeds: tuple[int, ...]
    steps: int
    every: int
    threads: int
    variant: str = DEFAULT
