"""Ray Tune on CartPole-v1, until one trial has reached the target.

A look is taken after an iteration whose training episodes are worth one, in the trial's own
process. The settings are RLlib's own for CartPole where it has some (6 epochs, value loss
coefficient 0.01), with learning rate and clip range searched and perturbed."""

from __future__ import annotations

import json
import os
import sys
import tempfile

import numpy as np
import torch
from lab.events import tell
from peers import ray_population
from peers.greedy_cartpole import WORTH_A_LOOK, PopulationOrder, reaches_target
from ray import tune
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


class LookAfterIteration(RLlibCallback):
    """Adds `reached`, 1 once the trial's greedy policy has reached the target, to every result."""

    def on_train_result(self, *, algorithm, metrics_logger=None, result, **kwargs) -> None:
        result["reached"] = 0
        if result.get("env_runners", {}).get("episode_return_mean", 0.0) < WORTH_A_LOOK:
            return
        module = algorithm.get_module()

        @torch.no_grad()
        def policy(observation: np.ndarray) -> np.ndarray:
            batch = {"obs": torch.from_numpy(np.asarray(observation, dtype=np.float32))}
            return module.forward_inference(batch)["action_dist_inputs"].argmax(dim=-1).numpy()

        seed = 1000 * os.getpid() + result["training_iteration"]
        result["reached"] = int(reaches_target(policy, seed))


class Follow(tune.Callback):
    """Tells when the first trial has begun, and when one has reached the target."""

    def __init__(self) -> None:
        self._steps: dict[str, float] = {}
        self._has_begun = False

    def on_trial_start(self, iteration, trials, trial, **info) -> None:
        if not self._has_begun:
            tell("training")
        self._has_begun = True

    def on_trial_result(self, iteration, trials, trial, result, **info) -> None:
        self._steps[trial.trial_id] = result.get(ray_population.STEPS, 0)
        tell("reached" if result["reached"] else "steps", env_steps=int(sum(self._steps.values())))


class StopAll(tune.Stopper):
    def __init__(self) -> None:
        self._is_reached = False

    def __call__(self, trial_id, result) -> bool:
        self._is_reached = self._is_reached or bool(result["reached"])
        return self._is_reached

    def stop_all(self) -> bool:
        return self._is_reached


def main() -> None:
    order = PopulationOrder(**json.loads(sys.argv[1]))
    config = (
        ray_population.config_of("CartPole-v1", order.seed)
        .training(
            gamma=0.98,
            lambda_=0.8,
            num_epochs=6,
            vf_loss_coeff=0.01,
            entropy_coeff=0.0,
            train_batch_size_per_learner=512,
            minibatch_size=256,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .callbacks(LookAfterIteration)
    )
    mutations = {"lr": tune.loguniform(3e-4, 5e-3), "clip_param": tune.uniform(0.1, 0.3)}
    interval = ("training_iteration", 8)
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        # Eight trials at once have a process each: a thread for each is all that two cores can bear.
        ray_population.start_ray(order.population, folder, 1)
        ray_population.fit(
            config, order.population, mutations, interval, folder, StopAll(), [Follow()]
        )
        ray_population.ray.shutdown()


if __name__ == "__main__":
    main()
