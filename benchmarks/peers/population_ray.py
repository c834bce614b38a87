"""Ray Tune's population based training with RLlib's PPO on CartPole-v1, until one trial has reached
the target.

RLlib's new API stack; every trial is a process with its environments in it, all trials run at once.
A look is taken after an iteration whose training episodes are worth one, in the trial's own
process. The settings are RLlib's own for CartPole where it has some (6 epochs, value loss
coefficient 0.01), with learning rate and clip range searched and perturbed."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import warnings

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402 - warnings of what follows are silenced first
import ray  # noqa: E402
import torch  # noqa: E402
from lab.events import tell  # noqa: E402
from peers.greedy_cartpole import WORTH_A_LOOK, PopulationOrder, reaches_target  # noqa: E402
from ray import tune  # noqa: E402
from ray.rllib.algorithms.ppo import PPO, PPOConfig  # noqa: E402
from ray.rllib.callbacks.callbacks import RLlibCallback  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.tune.schedulers import PopulationBasedTraining  # noqa: E402

NUM_ENVS = 8
RETURN = "env_runners/episode_return_mean"
STEPS = "num_env_steps_sampled_lifetime"


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
        self._steps[trial.trial_id] = result.get(STEPS, 0)
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
    searched = {"lr": tune.loguniform(3e-4, 5e-3), "clip_param": tune.uniform(0.1, 0.3)}
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=8, hyperparam_mutations=searched
    )
    # A thread for each of eight processes is all that two cores can bear.
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ["PYTHONPATH"]}
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            # as many trials at once as the population has members, whatever the cores
            num_cpus=order.population,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _temp_dir=folder,
            runtime_env={"env_vars": variables},
        )
        tune.Tuner(
            PPO,
            param_space=_config(order.seed).training(**searched),
            tune_config=tune.TuneConfig(
                metric=RETURN, mode="max", num_samples=order.population, scheduler=scheduler
            ),
            run_config=tune.RunConfig(
                stop=StopAll(),
                callbacks=[Follow()],
                verbose=0,
                storage_path=folder,
                name="population",
            ),
        ).fit()
        ray.shutdown()


def _config(seed: int) -> PPOConfig:
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
        .learners(num_learners=0)
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
        .debugging(seed=seed)
    )


if __name__ == "__main__":
    main()
