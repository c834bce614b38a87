"""Stable-Baselines3's PPO on LunarLander-v3 for benchmarks/lunar_lander.py, with the settings of
rl-baselines3-zoo."""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402 - warnings of what follows are silenced first
from events import tell  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

TASK, TARGET = "LunarLander-v3", 200.0
SCREENING, CONFIRMATION, LOOKING_FRACTION = 8, 100, 0.2

# hyperparams/ppo.yml of rl-baselines3-zoo, LunarLander-v2 (the zoo has no other for version 3).
NUM_ENVS = 16
ZOO: dict[str, Any] = {
    "n_steps": 1024,
    "batch_size": 64,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.01,
}


class Looks(BaseCallback):
    """Looks at the greedy policy before a rollout, for at most a fifth of the time, until the
    target is confirmed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._began_at, self._looked_s, self._last_look_s = time.perf_counter(), 0.0, 0.0
        self._seed, self._reached = 1_000_000 * (seed + 1), False

    def _on_rollout_start(self) -> None:
        tell("steps", env_steps=self.num_timesteps)
        share = (self._looked_s + self._last_look_s) / (time.perf_counter() - self._began_at)
        if not self.num_timesteps or share > LOOKING_FRACTION:
            return
        start = time.perf_counter()
        if self._mean(SCREENING) >= TARGET and (mean := self._mean(CONFIRMATION)) >= TARGET:
            self._reached = True
            tell("reached", env_steps=self.num_timesteps, mean_return=mean)
        self._last_look_s = time.perf_counter() - start
        self._looked_s += self._last_look_s

    def _mean(self, episodes: int) -> float:
        environments = make_vec_env(TASK, n_envs=min(episodes, NUM_ENVS), seed=self._seed)
        self._seed += episodes
        mean, _ = evaluate_policy(
            self.model, environments, n_eval_episodes=episodes, deterministic=True
        )
        environments.close()
        return float(mean)

    def _on_step(self) -> bool:
        return not self._reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True, help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    environments = make_vec_env(TASK, n_envs=NUM_ENVS, seed=options.seed)
    model = PPO("MlpPolicy", environments, seed=options.seed, device="cpu", **ZOO)
    tell("training")
    model.learn(1_000_000_000, callback=Looks(options.seed))


if __name__ == "__main__":
    main()
