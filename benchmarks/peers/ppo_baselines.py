"""Stable-Baselines3's PPO, or SBX's, which has the same interface, for benchmarks/peers_ppo.py.

Environments are those that the library makes, in this process (DummyVecEnv: with 64 of them on few
cores faster than a process for each), behind its own running normalization of observations and
rewards, as the zoo has it."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402 - warnings of what follows are silenced first
import torch  # noqa: E402
from ppo_recipes import TASKS, Order, Recipe, recipe_of  # noqa: E402
from ppo_watch import Policy, Watch  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402

FOREVER = 1_000_000_000  # steps; the learning rates are constant


class _Over(Exception):
    pass


class Watching(Protocol):
    """What is asked before every rollout whether training is over."""

    def is_over(self, env_steps: int) -> bool:
        """env_steps: taken so far."""


class Follow(BaseCallback):
    """Makes its watch of the greedy policy, which takes raw observations, and asks it before every
    rollout."""

    watch: Watching

    def __init__(self, make_watch: Callable[[Policy], Watching]) -> None:
        super().__init__()
        self._make_watch = make_watch

    def _on_training_start(self) -> None:
        model, statistics = self.model, self.training_env

        def greedy(observation: np.ndarray) -> np.ndarray:
            return model.predict(statistics.normalize_obs(observation), deterministic=True)[0]

        self.watch = self._make_watch(greedy)

    def _on_rollout_start(self) -> None:
        if self.watch.is_over(self.num_timesteps):
            raise _Over

    def _on_step(self) -> bool:
        return True


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    arguments = TASKS[order.environment].arguments
    train(
        order,
        recipe_of(order.recipe, order.environment),
        arguments,
        lambda policy: Watch(order, policy),
    )


def train(
    order: Order,
    recipe: Recipe,
    arguments: Mapping[str, Any],
    make_watch: Callable[[Policy], Watching],
) -> None:
    """Until the watch says that it is over. arguments: of Gymnasium's class."""
    torch.set_num_threads(order.threads)
    environments = make_vec_env(
        order.environment, n_envs=recipe.num_envs, seed=order.seed, env_kwargs=dict(arguments)
    )
    model = make_model(order, recipe, VecNormalize(environments, gamma=recipe.gamma))
    with contextlib.suppress(_Over):
        model.learn(FOREVER, callback=Follow(make_watch))


def make_model(order: Order, recipe: Recipe, environments: VecNormalize) -> Any:
    """The library's PPO with the recipe's settings."""
    if order.library == "sb3":
        import stable_baselines3 as library
        from torch.nn import ReLU, Tanh

        activation = {"tanh": Tanh, "relu": ReLU}[recipe.activation]
    else:
        import sbx as library
        from flax import linen

        activation = getattr(linen, recipe.activation)
    sizes = list(recipe.hidden_sizes)
    policy: dict[str, Any] = {
        "net_arch": {"pi": sizes, "vf": sizes},
        "activation_fn": activation,
        "log_std_init": recipe.initial_log_std,
    }
    if recipe.orthogonal is not None:
        policy["ortho_init"] = recipe.orthogonal
    return library.PPO(
        "MlpPolicy",
        environments,
        n_steps=recipe.horizon,
        batch_size=recipe.minibatch_size,
        n_epochs=recipe.epochs,
        learning_rate=recipe.learning_rate,
        gamma=recipe.gamma,
        gae_lambda=recipe.gae_lambda,
        clip_range=recipe.clip_range,
        ent_coef=recipe.entropy_coefficient,
        vf_coef=recipe.value_coefficient,
        max_grad_norm=recipe.max_gradient_norm,
        policy_kwargs=policy,
        seed=order.seed,
        device="cpu",
    )


if __name__ == "__main__":
    main()
