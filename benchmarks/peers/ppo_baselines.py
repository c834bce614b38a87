"""Stable-Baselines3's PPO, or SBX's, which has the same interface, for benchmarks/peers_ppo.py.

Environments are those that the library makes, in this process (DummyVecEnv: with 64 of them on few
cores faster than a process for each), in MuJoCo behind its own running normalization of
observations and rewards, as the zoo has it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from peers.baselines import FOREVER, learn_until
from peers.ppo_recipes import ARGUMENTS, Order, Recipe, recipe_of
from peers.ppo_watch import Policy, Watch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize


class Watching(Protocol):
    """What is asked before every rollout whether training is over."""

    def is_over(self, env_steps: int) -> bool:
        """env_steps: taken so far."""


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    recipe = recipe_of(order.recipe, order.environment)
    train(order, recipe, lambda policy: Watch(order, policy))


def train(order: Order, recipe: Recipe, make_watch: Callable[[Policy], Watching]) -> None:
    """Until the watch of the greedy policy, which takes raw observations, says that it is over."""
    torch.set_num_threads(order.threads)
    arguments: Mapping[str, Any] = ARGUMENTS.get(order.environment, {})
    environments: Any = make_vec_env(
        order.environment, n_envs=recipe.num_envs, seed=order.seed, env_kwargs=dict(arguments)
    )
    if recipe.normalize:
        environments = VecNormalize(environments, gamma=recipe.gamma)
    model = make_model(order, recipe, environments)

    def greedy(observation: Any) -> Any:
        if recipe.normalize:
            observation = environments.normalize_obs(observation)
        return model.predict(observation, deterministic=True)[0]

    learn_until(model, make_watch(greedy).is_over, schedule_steps=recipe.schedule_steps or FOREVER)


def make_model(order: Order, recipe: Recipe, environments: Any) -> Any:
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
    rate, clip_range = recipe.learning_rate, recipe.clip_range
    falls = bool(recipe.schedule_steps)
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
        learning_rate=(lambda left: rate * left) if falls else rate,
        gamma=recipe.gamma,
        gae_lambda=recipe.gae_lambda,
        clip_range=(lambda left: clip_range * left) if falls else clip_range,
        ent_coef=recipe.entropy_coefficient,
        vf_coef=recipe.value_coefficient,
        max_grad_norm=recipe.max_gradient_norm,
        policy_kwargs=policy,
        seed=order.seed,
        device="cpu",
    )


if __name__ == "__main__":
    main()
