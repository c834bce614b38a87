"""Ours for benchmarks/returns.py: the seeds as the members of one cohort, in this process."""

from __future__ import annotations

import json
import sys

import torch
from ppo_recipes import SAME, hyperparameters
from returns_looks import Looks
from returns_order import ReturnsOrder

from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.algorithms.registry import algorithm_class
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments.registry import make_vec_environment


def main() -> None:
    order = ReturnsOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    members = tuple(MemberConfig(f"agent-{seed}", seed) for seed in order.seeds)
    cohort = CohortConfig("ppo", members, hyperparameters(SAME) | order.hyperparameters)
    environment = make_vec_environment(EnvironmentSpec(id=order.environment), len(members) * SAME.num_envs)
    algorithm = algorithm_class("ppo")(cohort, environment.observation_space, environment.action_space)
    collector = Collector(environment, algorithm.actor, torch.tensor(order.seeds))
    looks, env_steps = Looks(order, algorithm.actor), 0
    while not looks.is_over(env_steps):
        algorithm.update(collector.collect(algorithm.horizon, policy_version=algorithm.version))
        env_steps += algorithm.horizon * SAME.num_envs


if __name__ == "__main__":
    main()
