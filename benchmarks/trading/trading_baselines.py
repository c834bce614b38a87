"""Stable-Baselines3's PPO and SAC for trading.py and trading_speed.py, with its own defaults. PPO
has normalized observations and rewards, as its documentation advises, and rollouts of 2,048
transitions in all accounts together (DummyVecEnv)."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import numpy as np
import torch
from lab.events import Speedometer
from peers.baselines import learn_until
from peers.stock_trading_env import ArrayStockTradingEnv
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from trading_seasons import Act, Selection, TradingOrder

from podracer_trading.environment import StockTrading

ROLLOUT = 2048
LOOK_EVERY = 16
"""Steps of all accounts between two looks at the clock."""


def main() -> None:
    order = TradingOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    market = StockTrading(1, **order.arguments)
    accounts = make_vec_env(
        lambda: ArrayStockTradingEnv(market), n_envs=order.num_envs, seed=order.seed
    )
    about: dict[str, Any] = {"seed": order.seed, "device": "cpu"}
    if order.algorithm == "ppo":
        steps = max(ROLLOUT // order.num_envs, 32)
        model: Any = PPO("MlpPolicy", VecNormalize(accounts), n_steps=steps, **about)
    else:
        model = SAC("MlpPolicy", accounts, **about)
    if order.snapshots:
        selection = Selection(order)
        selection.begin()
        learn_until(
            model, lambda steps: selection.is_over(lambda: _snapshot(model), steps), LOOK_EVERY
        )
    else:
        learn_until(model, Speedometer(order.seconds).is_over)


def _snapshot(model: Any) -> Act:
    policy, normalizer = copy.deepcopy(model.policy), model.get_vec_normalize_env()
    mean, deviation, most = 0.0, 1.0, np.inf
    if normalizer is not None:
        mean = normalizer.obs_rms.mean.copy()
        deviation = np.sqrt(normalizer.obs_rms.var + normalizer.epsilon)
        most = normalizer.clip_obs

    def act(observation: Any) -> Any:
        seen = np.clip((observation - mean) / deviation, -most, most).astype(np.float32)
        return policy.predict(seen, deterministic=True)[0]

    return act


if __name__ == "__main__":
    main()
