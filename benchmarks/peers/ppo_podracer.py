"""Ours for benchmarks/peers_ppo.py: steps/s of the session that a fused pod's learner runs, in this
process.

Collecting, updating and counting are the learner's; nothing is evaluated, as nothing is in the
peers' measurement."""

from __future__ import annotations

import json
import sys

import torch
from ppo_recipes import Order, hyperparameters, recipe_of
from ppo_watch import Watch

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment
from podracer_core.training import InProcessSource, RoundPlan, TrainingSession


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    recipe = recipe_of(order.recipe, order.environment)
    cohort = CohortConfig("ppo", (MemberConfig("agent", order.seed),), hyperparameters(recipe))
    environment = make_vec_environment(EnvironmentSpec(id=order.environment), recipe.num_envs)
    algorithm = algorithm_class("ppo")(
        cohort, environment.observation_space, environment.action_space
    )
    source = InProcessSource(
        Collector(environment, algorithm.actor, torch.tensor([order.seed])), algorithm
    )
    session = TrainingSession(algorithm, source, None, RoundPlan(duration_s=3600.0))
    watch = Watch(order, None)
    while not watch.is_over(session.moment().env_steps[0]):
        session.step()
    source.close()


if __name__ == "__main__":
    main()
