"""RLlib's PPO for trading.py, on its new API stack with its own default settings, all in
this process."""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import tempfile
import warnings
from typing import Any

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402 - warnings of what follows are silenced first
import ray  # noqa: E402
import torch  # noqa: E402
from peers.stock_trading_env import ArrayStockTradingEnv  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.tune.registry import register_env  # noqa: E402
from trading_seasons import Act, SeasonOrder, Selection  # noqa: E402

STEPS = "num_env_steps_sampled_lifetime"


def main() -> None:
    order = SeasonOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    selection = Selection(order)
    register_env("stock-trading", lambda _: ArrayStockTradingEnv(selection.market))
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
        selection.begin()
        env_steps = 0
        while not selection.is_over(lambda: _snapshot(algorithm, selection), env_steps):
            env_steps = int(algorithm.train()[STEPS])
        algorithm.stop()
        ray.shutdown()


def _snapshot(algorithm: Any, selection: Selection) -> Act:
    module, stocks = copy.deepcopy(algorithm.get_module()), selection.market.action_space.shape[0]

    def act(observation: Any) -> Any:
        with torch.no_grad():
            out = module.forward_inference(
                {"obs": torch.from_numpy(np.asarray(observation, np.float32))[None]}
            )
        mean = out["action_dist_inputs"][0, :stocks].numpy()  # the deviations follow
        return np.clip(mean, -1.0, 1.0)

    return act


if __name__ == "__main__":
    main()
