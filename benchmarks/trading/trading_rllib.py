"""RLlib's PPO for trading.py and trading_speed.py, on its new API stack with its own defaults, all
in this process: with two cores environment runners of their own are slower."""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402 - warnings of what follows are silenced first
import ray  # noqa: E402
import torch  # noqa: E402
from lab.events import Speedometer  # noqa: E402
from peers.stock_trading_env import ArrayStockTradingEnv  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.tune.registry import register_env  # noqa: E402
from trading_seasons import Act, Selection, TradingOrder  # noqa: E402

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
        algorithm = (
            PPOConfig()
            .environment("stock-trading")
            .env_runners(num_env_runners=0, num_envs_per_env_runner=order.num_envs)
            .learners(num_learners=0)
            .debugging(seed=order.seed)
            .build_algo()
        )
        is_over, env_steps = _watch(order, algorithm), 0
        while not is_over(env_steps):
            env_steps = int(algorithm.train()[STEPS])
        algorithm.stop()
        ray.shutdown()


def _watch(order: TradingOrder, algorithm: Any) -> Callable[[int], bool]:
    """To be asked between updates."""
    if not order.snapshots:
        return Speedometer(order.seconds).is_over
    selection = Selection(order)
    selection.begin()
    return lambda env_steps: selection.is_over(lambda: _snapshot(algorithm, selection), env_steps)


def _snapshot(algorithm: Any, selection: Selection) -> Act:
    module, stocks = copy.deepcopy(algorithm.get_module()), selection.market.action_space.shape[0]

    def act(observation: Any) -> Any:
        seen = torch.from_numpy(np.asarray(observation, np.float32))[None]
        with torch.no_grad():
            out = module.forward_inference({"obs": seen})
        mean = out["action_dist_inputs"][0, :stocks].numpy()  # the deviations follow
        return np.clip(mean, -1.0, 1.0)

    return act


if __name__ == "__main__":
    main()
