"""Ours for trading_speed.py: steps/s of the session that a fused pod's learner runs, in
this process."""

from __future__ import annotations

import json
import sys

import torch
from trading_order import Speedometer, TradingOrder

from podracer_core.algorithms import PPO, CohortConfig, MemberConfig
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment
from podracer_core.training import InProcessSource, RoundPlan, TrainingSession

SETTINGS = {"horizon": 32, "minibatch_size": 4096, "epochs": 4, "hidden_sizes": (64, 64)}


def main() -> None:
    order = TradingOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    cohort = CohortConfig("ppo", (MemberConfig("agent", order.seed),), SETTINGS)
    spec = EnvironmentSpec(id="StockTrading-v0", kwargs=dict(order.arguments))
    environment = make_vec_environment(spec, order.num_envs)
    algorithm = PPO(cohort, environment.observation_space, environment.action_space)
    source = InProcessSource(
        Collector(environment, algorithm.actor, torch.tensor([order.seed])), algorithm
    )
    session = TrainingSession(algorithm, source, None, RoundPlan(duration_s=3600.0))
    speedometer = Speedometer(order.seconds)
    while not speedometer.is_over(session.moment().env_steps[0]):
        session.step()
    source.close()


if __name__ == "__main__":
    main()
