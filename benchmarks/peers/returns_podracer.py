"""Ours for benchmarks/returns.py: the seeds as the members of one cohort, in this process."""

from __future__ import annotations

import json
import sys

import torch
from ppo_recipes import SAME, hyperparameters
from returns_looks import Looks
from returns_order import ReturnsOrder
from returns_variants import VARIANTS

from podracer_core.algorithms import CohortConfig, MemberConfig
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment


def main() -> None:
    order = ReturnsOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    variant, recipe = VARIANTS[order.variant], hyperparameters(SAME)
    members = tuple(MemberConfig(f"agent-{seed}", seed) for seed in order.seeds)
    cohort = CohortConfig("ppo", members, recipe | variant.shared())
    environment = make_vec_environment(
        EnvironmentSpec(id=order.environment), len(members) * SAME.num_envs
    )
    algorithm = variant.algorithm(cohort, environment.observation_space, environment.action_space)
    seeds = torch.tensor(order.seeds)
    collector = Collector(environment, algorithm.actor, seeds, random_ages=variant.random_ages)
    scale = variant.reward_scale(len(members), SAME.num_envs, SAME.gamma)
    looks, env_steps, only_observes = Looks(order, algorithm.actor), 0, variant.first_statistics
    while not looks.is_over(env_steps):
        rollout = scale(collector.collect(algorithm.horizon, policy_version=algorithm.version))
        if only_observes:
            algorithm.observe_only(rollout)
        else:
            algorithm.update(rollout)
        only_observes = False
        env_steps += algorithm.horizon * SAME.num_envs


if __name__ == "__main__":
    main()
