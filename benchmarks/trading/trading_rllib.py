"""RLlib's PPO for trading_speed.py, on its new API stack with its own defaults, all in
this process: with two cores environment runners of their own are slower."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import warnings

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
warnings.simplefilter("ignore")

import ray  # noqa: E402 - warnings of what follows are silenced first
import torch  # noqa: E402
from peers.stock_trading_env import ArrayStockTradingEnv  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.tune.registry import register_env  # noqa: E402
from trading_order import Speedometer, TradingOrder  # noqa: E402

from podracer_trading.environment import StockTrading  # noqa: E402

STEPS = "num_env_steps_sampled_lifetime"


def main() -> None:
    order = TradingOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    market = StockTrading(1, **order.arguments)
    register_env("stock-trading", lambda _: ArrayStockTradingEnv(market))
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _temp_dir=folder,
        )
        config = (
            PPOConfig()
            .environment("stock-trading")
            .env_runners(num_env_runners=0, num_envs_per_env_runner=order.num_envs)
            .learners(num_learners=0)
            .debugging(seed=order.seed)
        )
        algorithm, env_steps = config.build_algo(), 0
        speedometer = Speedometer(order.seconds)
        while not speedometer.is_over(env_steps):
            env_steps = int(algorithm.train()[STEPS])
        algorithm.stop()
        ray.shutdown()


if __name__ == "__main__":
    main()
