"""Ours for trading_speed.py: steps/s of the session that a fused pod's learner runs, in
this process."""

from __future__ import annotations

import json
import sys

import torch
from lab.agents import Agents
from lab.events import Speedometer
from trading_seasons import TradingOrder

from podracer_core.catalogue import EnvironmentSpec

SETTINGS = {"horizon": 32, "minibatch_size": 4096, "epochs": 4, "hidden_sizes": (64, 64)}


def main() -> None:
    order = TradingOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    market = EnvironmentSpec(id="StockTrading-v0", kwargs=dict(order.arguments))
    agents = Agents("ppo", market, [order.seed], order.num_envs, SETTINGS)
    agents.session_until(Speedometer(order.seconds).is_over)


if __name__ == "__main__":
    main()
