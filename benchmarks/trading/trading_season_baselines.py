"""Stable-Baselines3's PPO and SAC for trading.py, with its own default settings; PPO
with observations and rewards normalized, as its documentation advises, and rollouts of 2,048
transitions in all accounts together."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402 - warnings of what follows are silenced first
import torch  # noqa: E402
from peers.stock_trading_env import ArrayStockTradingEnv  # noqa: E402
from stable_baselines3 import PPO, SAC  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402
from trading_seasons import Act, SeasonOrder, Selection  # noqa: E402

ROLLOUT = 2048
FOREVER = 1_000_000_000
LOOK_EVERY = 16
"""Steps of all accounts between two looks at the clock."""


class _Over(Exception):
    pass


class _Follow(BaseCallback):
    def __init__(self, selection: Selection) -> None:
        super().__init__()
        self._selection = selection

    def _on_training_start(self) -> None:
        self._selection.begin()

    def _on_step(self) -> bool:
        if self.n_calls % LOOK_EVERY == 0 and self._selection.is_over(
            self._snapshot, self.num_timesteps
        ):
            raise _Over
        return True

    def _snapshot(self) -> Act:
        policy, normalizer = copy.deepcopy(self.model.policy), self.model.get_vec_normalize_env()
        mean, deviation, most = 0.0, 1.0, np.inf
        if normalizer is not None:
            mean = normalizer.obs_rms.mean.copy()
            deviation = np.sqrt(normalizer.obs_rms.var + normalizer.epsilon)
            most = normalizer.clip_obs

        def act(observation: Any) -> Any:
            seen = np.clip((observation - mean) / deviation, -most, most).astype(np.float32)
            return policy.predict(seen, deterministic=True)[0]

        return act


def main() -> None:
    order = SeasonOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    selection = Selection(order)
    accounts = make_vec_env(
        lambda: ArrayStockTradingEnv(selection.market), n_envs=order.num_envs, seed=order.seed
    )
    if order.algorithm == "ppo":
        steps = max(ROLLOUT // order.num_envs, 32)
        model: Any = PPO(
            "MlpPolicy", VecNormalize(accounts), n_steps=steps, seed=order.seed, device="cpu"
        )
    else:
        model = SAC("MlpPolicy", accounts, seed=order.seed, device="cpu")
    with contextlib.suppress(_Over):
        model.learn(FOREVER, callback=_Follow(selection))


if __name__ == "__main__":
    main()
