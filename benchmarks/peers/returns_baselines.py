"""Stable-Baselines3's PPO for benchmarks/returns.py: one agent, on the library's environments and
VecNormalize."""

from __future__ import annotations

import json
import sys

from peers.ppo_baselines import train
from peers.ppo_recipes import SAME, Order
from peers.returns_looks import Looks, PeerActor
from peers.returns_training import ReturnsOrder


def main() -> None:
    order = ReturnsOrder(**json.loads(sys.argv[1]))
    (seed,) = order.seeds
    own = Order("sb3", order.environment, "same", seed, order.threads)
    train(own, SAME, lambda policy: Looks(order, PeerActor(policy)))


if __name__ == "__main__":
    main()
