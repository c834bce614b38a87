"""Ray Tune for benchmarks/evolution.py: eight trials share a budget.

The seconds are the processor seconds that the trials' processes use after their start. When the
budget is used, the trial whose last training episodes were best plays greedy episodes, which do not
count. The settings are RLlib's defaults for PPO (batches of 4,000 steps, minibatches of 128,
networks of 256-256), with observations normalized. Searched and perturbed are the hyperparameters
that its documentation's example perturbs, in ranges around the defaults."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from types import SimpleNamespace

from lab.events import tell
from peers import ray_population
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter


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
        self.steps[trial_id] = int(result.get(ray_population.STEPS, 0))
        mean = result.get("env_runners", {}).get("episode_return_mean", -1e9)
        if self.reached is None and mean >= self._goal:
            self.reached = self.used_s
        tell("steps", env_steps=sum(self.steps.values()), cost_s=self.used_s)
        return self.stop_all()

    def stop_all(self) -> bool:
        return self.used_s >= self.budget_s


def main() -> None:
    order = SimpleNamespace(**json.loads(sys.argv[1]))  # EvolutionOrder of evolution.py
    budget, population = Budget(order.seconds, order.goal), order.population
    config = (
        ray_population.config_of(
            order.environment,
            order.seed,
            env_to_module_connector=lambda env=None, spaces=None, device=None: MeanStdFilter(),
        )
        .evaluation(
            evaluation_interval=None,
            evaluation_num_env_runners=0,
            evaluation_duration=order.episodes,
            evaluation_config={"explore": False},
        )
        .callbacks(CountSeconds)
    )
    mutations = {
        "lr": tune.loguniform(3e-5, 3e-3),
        "lambda_": tune.uniform(0.9, 1.0),
        "clip_param": tune.uniform(0.1, 0.4),
        "num_epochs": tune.randint(4, 31),
        "entropy_coeff": tune.loguniform(1e-4, 1e-2),
    }
    # In wall seconds, as only these go on where a trial is restored.
    interval_s = order.round_s * population / min(population, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray_population.start_ray(population, folder, 1)
        start = time.perf_counter()
        found = ray_population.fit(
            config,
            population,
            mutations,
            ("time_total_s", interval_s),
            folder,
            budget,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        )
        train_s = time.perf_counter() - start
        best = found.get_best_result(scope="last")
        algorithm = Algorithm.from_checkpoint(best.checkpoint.path)
        value = algorithm.evaluate()["env_runners"]["episode_return_mean"]
        tell(
            "finished",
            value=value,
            seconds=budget.reached,
            train_s=train_s,
            cost_s=budget.used_s,
            env_steps=sum(budget.steps.values()),
            agents=population,
        )
        ray_population.ray.shutdown()


if __name__ == "__main__":
    main()
