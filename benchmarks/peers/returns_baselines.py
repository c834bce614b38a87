"""Stable-Baselines3's PPO for benchmarks/returns.py: one agent, on the library's environments and
VecNormalize."""

from __future__ import annotations

import json
import sys

from ppo_baselines import train
from ppo_recipes import ARGUMENTS, SAME, Order
from returns_looks import Looks, PeerActor
from returns_order import ReturnsOrder


def main() -> None:
    order = ReturnsOrder(**json.loads(sys.argv[1]))
    (seed,) = order.seeds
    train(
        Order("sb3", order.environment, "same", seed, order.threads),
        SAME,
        ARGUMENTS[order.environment],
        lambda policy: Looks(order, PeerActor(policy)),
    )


if __name__ == "__main__":
    main()
