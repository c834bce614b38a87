"""Ray Tune's population based training with RLlib's PPO on its new API stack, for
benchmarks/population_cartpole.py and benchmarks/evolution.py: every trial is a process with its
environments in it, and all trials run at once."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name; 15 by default, which starves it beside others
warnings.simplefilter("ignore")

import ray  # noqa: E402 - warnings of what follows are silenced first
from ray import tune  # noqa: E402
from ray.rllib.algorithms.ppo import PPO, PPOConfig  # noqa: E402
from ray.tune.schedulers import PopulationBasedTraining  # noqa: E402

RETURN = "env_runners/episode_return_mean"
STEPS = "num_env_steps_sampled_lifetime"
NUM_ENVS = 8


def start_ray(population: int, folder: str, threads: int) -> None:
    """As many trials at once as the population has members, whatever the cores; `threads` are
    torch's in each."""
    path = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ["PYTHONPATH"]])
    ray.init(
        num_cpus=population,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        _temp_dir=folder,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}},
    )


def fit(
    config: PPOConfig,
    population: int,
    mutations: Mapping[str, Any],
    interval: tuple[str, float],
    folder: str,
    stop: tune.Stopper,
    callbacks: Sequence[tune.Callback] = (),
    **run: Any,
) -> tune.ResultGrid:
    """Train until `stop` says so. Searched and perturbed are the `mutations`, after each `interval`
    of a time attribute; `run` are arguments of Tune's RunConfig."""
    name, length = interval
    scheduler = PopulationBasedTraining(
        time_attr=name, perturbation_interval=length, hyperparam_mutations=dict(mutations)
    )
    config = config.training(**mutations)
    return tune.Tuner(
        PPO,
        param_space=config,
        tune_config=tune.TuneConfig(
            metric=RETURN, mode="max", num_samples=population, scheduler=scheduler
        ),
        run_config=tune.RunConfig(
            stop=stop,
            callbacks=list(callbacks),
            verbose=0,
            storage_path=folder,
            name="population",
            **run,
        ),
    ).fit()


def config_of(environment: str, seed: int, **env_runners: Any) -> PPOConfig:
    """RLlib's defaults, the environments and the learner in the trial's process."""
    return (
        PPOConfig()
        .environment(environment)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS, **env_runners)
        .learners(num_learners=0)
        .debugging(seed=seed)
    )
