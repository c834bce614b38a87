"""Ours for benchmarks/returns.py: the seeds as the members of one cohort, in this process."""

from __future__ import annotations

import json
import sys

import torch
from lab.agents import Agents
from peers.ppo_recipes import SAME, hyperparameters
from peers.returns_looks import Looks
from peers.returns_training import ReturnsOrder
from peers.returns_variants import VARIANTS

from podracer_core.catalogue import EnvironmentSpec


def main() -> None:
    order = ReturnsOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    variant = VARIANTS[order.variant]
    agents = Agents(
        "ppo",
        EnvironmentSpec(id=order.environment),
        order.seeds,
        SAME.num_envs,
        hyperparameters(SAME) | variant.shared(),
        make=variant.algorithm,
        random_ages=variant.random_ages,
    )
    algorithm = agents.algorithm
    scale = variant.reward_scale(len(order.seeds), SAME.num_envs, SAME.gamma)
    looks, env_steps = Looks(order, algorithm.actor), 0
    while not looks.is_over(env_steps):
        rollout = scale(agents.collect())
        if variant.first_statistics and not env_steps:
            algorithm.observe_only(rollout)
        else:
            algorithm.update(rollout)
        env_steps += algorithm.horizon * SAME.num_envs


if __name__ == "__main__":
    main()
