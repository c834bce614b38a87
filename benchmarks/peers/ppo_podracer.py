"""Ours for benchmarks/peers_ppo.py: steps/s of the session that a fused pod's learner runs, in this
process.

Collecting, updating and counting are the learner's; nothing is evaluated, as nothing is in the
peers' measurement."""

from __future__ import annotations

import json
import sys

import torch
from lab.agents import Agents
from peers.ppo_recipes import Order, hyperparameters, recipe_of
from peers.ppo_watch import Watch

from podracer_core.catalogue import EnvironmentSpec


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    recipe, watch = recipe_of(order.recipe, order.environment), Watch(order, None)
    seeds = [order.seed * order.members + member for member in range(order.members)]
    environment = EnvironmentSpec(id=order.environment)
    agents = Agents("ppo", environment, seeds, recipe.num_envs, hyperparameters(recipe))
    agents.session_until(lambda env_steps: watch.is_over(env_steps * order.members))


if __name__ == "__main__":
    main()
