"""RLlib's PPO on its new API stack, for benchmarks/peers_ppo.py: environment runners as processes,
the learner here.

same        settings of everybody. The first standard deviation of an action is 1: its model has no
            setting for that
published   RLlib's own example for MuJoCo tasks, rllib/examples/algorithms/ppo/mujoco_ppo.py, on as
            many runners as are asked for; there are 4 in it, with 16 environments each, and the
            learner is a process of its own, too
"""

from __future__ import annotations

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
from peers.ppo_recipes import ARGUMENTS, Order, Recipe, recipe_of  # noqa: E402
from peers.ppo_watch import Policy, Watch  # noqa: E402
from ray.rllib.algorithms.algorithm import Algorithm  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from torch.nn.init import orthogonal_  # noqa: E402

PUBLISHED_NUM_ENVS, PUBLISHED_FRAGMENT = 64, 32
STEPS = "num_env_steps_sampled_lifetime"


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        # A processor for each runner and one for the learner, whatever the machine has: all of them
        # run at once.
        ray.init(
            num_cpus=order.env_runners + 1,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _temp_dir=folder,
        )
        algorithm = make_config(order).build_algo()
        watch, env_steps = Watch(order, greedy_policy(algorithm)), 0
        while not watch.is_over(env_steps):
            env_steps = int(algorithm.train()[STEPS])
        algorithm.stop()
        ray.shutdown()


def make_config(order: Order) -> PPOConfig:
    """Settings of the recipe, environments shared by the runners."""
    recipe = None if order.recipe == "published" else recipe_of(order.recipe, order.environment)
    num_envs, fragment = (
        (recipe.num_envs, recipe.horizon) if recipe else (PUBLISHED_NUM_ENVS, PUBLISHED_FRAGMENT)
    )
    config = (
        PPOConfig()
        .environment(order.environment, env_config=dict(ARGUMENTS[order.environment]))
        .env_runners(
            num_env_runners=order.env_runners,
            num_envs_per_env_runner=num_envs // order.env_runners,
            rollout_fragment_length=fragment,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .learners(num_learners=0)
        .debugging(seed=order.seed)
    )
    return _as_everybody(config, recipe) if recipe else _published(config)


def _published(config: PPOConfig) -> PPOConfig:
    head = {"head_fcnet_hiddens": [256], "head_fcnet_activation": None}
    return _with(
        config,
        {"fcnet_hiddens": [256, 256], "fcnet_activation": "tanh", **head},
        train_batch_size_per_learner=2048,
        minibatch_size=512,
        num_epochs=10,
        lr=3e-4,
        vf_loss_coeff=1.0,
        entropy_coeff=[[0, 0.01], [2_000_000, 0.0]],
        gamma=0.99,
        lambda_=0.95,
        kl_coeff=0.5,
        clip_param=0.2,
        vf_clip_param=10.0,
        grad_clip=50.0,
    )


def _as_everybody(config: PPOConfig, recipe: Recipe) -> PPOConfig:
    return _with(
        config,
        {"fcnet_hiddens": list(recipe.hidden_sizes), "fcnet_activation": recipe.activation},
        train_batch_size_per_learner=recipe.num_envs * recipe.horizon,
        minibatch_size=recipe.minibatch_size,
        num_epochs=recipe.epochs,
        lr=recipe.learning_rate,
        vf_loss_coeff=recipe.value_coefficient,
        entropy_coeff=recipe.entropy_coefficient,
        gamma=recipe.gamma,
        lambda_=recipe.gae_lambda,
        use_kl_loss=False,
        clip_param=recipe.clip_range,
        vf_clip_param=float("inf"),
        grad_clip=recipe.max_gradient_norm,
    )


def _with(config: PPOConfig, networks: dict[str, Any], **training: Any) -> PPOConfig:
    """Actor and critic are networks of their own, as in all systems."""
    model = DefaultModelConfig(
        vf_share_layers=False,
        fcnet_kernel_initializer=orthogonal_,
        free_log_std=True,
        **networks,
    )
    return config.rl_module(model_config=model).training(grad_clip_by="global_norm", **training)


def greedy_policy(algorithm: Algorithm) -> Policy:
    """The mean of the module's Gaussian on observations as the runners' merged filter shows
    them."""

    @torch.no_grad()
    def policy(observation: np.ndarray) -> np.ndarray:
        runner = algorithm.env_runner
        (filtering,) = runner._env_to_module[MeanStdFilter]
        seen = filtering._filters[None](observation, update=False)
        outputs = runner.module.forward_inference({"obs": torch.from_numpy(seen)})[
            "action_dist_inputs"
        ]
        # Both tasks' actions are in [-1, 1], to which RLlib clips the mean.
        return outputs.chunk(2, dim=-1)[0].clamp(-1.0, 1.0).numpy()

    return policy


if __name__ == "__main__":
    main()
