"""Ray Tune's population based training with RLlib's PPO, for benchmarks/evolution.py: eight trials
share a budget.

All trials run at once, each a process with its environments in it. The seconds are the processor
seconds that these processes use after their start. When the budget is used, the trial whose last
training episodes were best plays greedy episodes, which do not count. The settings are RLlib's
defaults for PPO, with observations normalized. Searched and perturbed are the hyperparameters that
its documentation's example perturbs, in ranges around the defaults."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name; 15 by default, which starves it beside others
warnings.simplefilter("ignore")

import ray  # noqa: E402 - warnings of what follows are silenced first
from events import tell  # noqa: E402
from ray import tune  # noqa: E402
from ray.rllib.algorithms.algorithm import Algorithm  # noqa: E402
from ray.rllib.algorithms.ppo import PPO, PPOConfig  # noqa: E402
from ray.rllib.callbacks.callbacks import RLlibCallback  # noqa: E402
from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter  # noqa: E402
from ray.tune.schedulers import PopulationBasedTraining  # noqa: E402

RETURN = "env_runners/episode_return_mean"
STEPS = "num_env_steps_sampled_lifetime"
NUM_ENVS = 8


class CountSeconds(RLlibCallback):
    """Adds to every result the trial's process and its processor seconds since the algorithm was
    built."""

    def on_algorithm_init(self, *, algorithm, **kwargs) -> None:
        self._started_s = time.process_time()

    def on_train_result(self, *, algorithm, metrics_logger=None, result, **kwargs) -> None:
        result["process"], result["cpu_s"] = os.getpid(), time.process_time() - self._started_s


class Budget(tune.Stopper):
    """Ends all trials when their processes have used the budget; `reached`: the seconds when one
    had the goal."""

    def __init__(self, seconds: float, goal: float) -> None:
        self.budget_s, self._goal = seconds, goal
        self.steps: dict[str, int] = {}
        self.seconds: dict[int, float] = {}
        self.reached: float | None = None

    @property
    def used_s(self) -> float:
        return sum(self.seconds.values())

    def __call__(self, trial_id, result) -> bool:
        self.seconds[result["process"]] = result["cpu_s"]
        self.steps[trial_id] = int(result.get(STEPS, 0))
        if (
            self.reached is None
            and result.get("env_runners", {}).get("episode_return_mean", -1e9) >= self._goal
        ):
            self.reached = self.used_s
        tell("steps", env_steps=sum(self.steps.values()), cost_s=self.used_s)
        return self.stop_all()

    def stop_all(self) -> bool:
        return self.used_s >= self.budget_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environment")
    parser.add_argument("--seconds", type=float, required=True, help="of all trials together")
    parser.add_argument("--goal", type=float, required=True)
    parser.add_argument(
        "--round",
        type=float,
        required=True,
        help="processor seconds of a trial between perturbations",
    )
    parser.add_argument("--population", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    budget, here = Budget(options.seconds, options.goal), str(Path(__file__).resolve().parent)
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            num_cpus=options.population,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _temp_dir=folder,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": here}},
        )
        start = time.perf_counter()
        found = tune.Tuner(
            PPO,
            param_space=_config(options),
            tune_config=tune.TuneConfig(
                metric=RETURN,
                mode="max",
                num_samples=options.population,
                scheduler=_scheduler(options),
            ),
            run_config=tune.RunConfig(
                stop=budget,
                verbose=0,
                storage_path=folder,
                name="population",
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            ),
        ).fit()
        train_s = time.perf_counter() - start
        best = found.get_best_result(scope="last")
        algorithm = Algorithm.from_checkpoint(best.checkpoint.path)
        value = algorithm.evaluate()["env_runners"]["episode_return_mean"]
        tell(
            "finished", value=value, seconds=budget.reached, train_s=train_s, cost_s=budget.used_s,
            env_steps=sum(budget.steps.values()), agents=options.population,
        )  # fmt: skip
        ray.shutdown()


def _scheduler(options: argparse.Namespace) -> PopulationBasedTraining:
    """Its interval is in wall seconds, as only these go on where a trial is restored."""
    return PopulationBasedTraining(
        time_attr="time_total_s",
        perturbation_interval=options.round
        * options.population
        / min(options.population, os.cpu_count() or 1),
        hyperparam_mutations={
            "lr": tune.loguniform(3e-5, 3e-3),
            "lambda_": tune.uniform(0.9, 1.0),
            "clip_param": tune.uniform(0.1, 0.4),
            "num_epochs": tune.randint(4, 31),
            "entropy_coeff": tune.loguniform(1e-4, 1e-2),
        },
    )


def _config(options: argparse.Namespace) -> PPOConfig:
    """RLlib's defaults: batches of 4,000 steps, minibatches of 128, networks of 256-256."""
    return (
        PPOConfig()
        .environment(options.environment)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=NUM_ENVS,
            env_to_module_connector=lambda env=None, spaces=None, device=None: MeanStdFilter(),
        )
        .learners(num_learners=0)
        .training(
            lr=tune.loguniform(3e-5, 3e-3),
            lambda_=tune.uniform(0.9, 1.0),
            clip_param=tune.uniform(0.1, 0.4),
            num_epochs=tune.randint(4, 31),
            entropy_coeff=tune.loguniform(1e-4, 1e-2),
        )
        .evaluation(
            evaluation_interval=None,
            evaluation_num_env_runners=0,
            evaluation_duration=options.episodes,
            evaluation_config={"explore": False},
        )
        .callbacks(CountSeconds)
        .debugging(seed=options.seed)
    )


if __name__ == "__main__":
    main()
