"""Stable-Baselines3's PPO for trading_speed.py: its own defaults, accounts in one
process (DummyVecEnv)."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402 - warnings of what follows are silenced first
from peers.stock_trading_env import ArrayStockTradingEnv  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402
from trading_order import Speedometer, TradingOrder  # noqa: E402

from podracer_trading.environment import StockTrading  # noqa: E402

ROLLOUT = 2048
"""Transitions of a rollout, and per environment where there are few: the default."""
FOREVER = 1_000_000_000


class _Over(Exception):
    pass


class _Follow(BaseCallback):
    def __init__(self, speedometer: Speedometer) -> None:
        super().__init__()
        self._speedometer = speedometer

    def _on_rollout_start(self) -> None:
        if self._speedometer.is_over(self.num_timesteps):
            raise _Over

    def _on_step(self) -> bool:
        return True


def main() -> None:
    order = TradingOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    market = StockTrading(1, **order.arguments)
    accounts = make_vec_env(
        lambda: ArrayStockTradingEnv(market), n_envs=order.num_envs, seed=order.seed
    )
    steps = max(ROLLOUT // order.num_envs, 32)
    model = PPO("MlpPolicy", VecNormalize(accounts), n_steps=steps, seed=order.seed, device="cpu")
    with contextlib.suppress(_Over):
        model.learn(FOREVER, callback=_Follow(Speedometer(order.seconds)))


if __name__ == "__main__":
    main()
