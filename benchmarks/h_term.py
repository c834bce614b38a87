"""PPO with and without the H-term, in both forms: eight agents with seeds of their own learn as one
cohort each.

For every agent: the final greedy mean of 32 episodes, and the area under its curve, the mean of
greedy looks at 16 episodes after every LOOKS-th part of the training (of returns, so more is
better). Over the agents the mean, the variance, the least and the greatest of both. The agents of a
seed start with the same weights and see the same first episodes with and without the term. And what
it costs: environment steps a second of collecting and learning, without the looks, by the clock and
by the processor's time, which other work on the machine does not touch. Each is a process of its
own, one after the other.

On CartPole-v1 every reward is 1: the k-step form takes all steps for equally good, and the segment
form never finds a segment above the mean, so it does nothing there but cost time."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from lab.arguments import arguments
from lab.processes import in_process
from lab.report import finish, print_table, versions

LOOKS, LOOK_EPISODES, FINAL_EPISODES = 20, 16, 32
TITLES = {"off": "PPO", "segment": "with the segment form", "k_step": "with the k-step form"}
# num_envs are each agent's, as are env_steps; the rest are what docs/algorithms/ppo.md has found to
# work.
RECIPES: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {
        "num_envs": 16,
        "env_steps": 160_000,
        "hyperparameters": {
            "horizon": 200,
            "minibatch_size": 400,
            "epochs": 10,
            "learning_rate": 1e-3,
            "gamma": 0.95,
        },
    },
    "CartPole-v1": {
        "num_envs": 32,
        "env_steps": 102_400,
        "hyperparameters": {
            "horizon": 32,
            "minibatch_size": 256,
            "epochs": 4,
            "learning_rate": 1e-3,
        },
    },
}


@dataclass(frozen=True)
class Measurement:
    """What one worker process measures."""

    environment: str
    form: str
    env_steps: int
    agents: int
    threads: int


def main() -> None:
    options = arguments(
        __doc__,
        "a sixteenth of the steps, Pendulum only: under a minute",
        seeds=8,
        threads=1,
        worker="",
    ).parse_args()
    if options.worker:
        print(json.dumps(_train(Measurement(**json.loads(options.worker)))))
        return
    print(
        versions("torch", "gymnasium"), f"· {options.threads} torch threads, {options.seeds} seeds"
    )
    figures: dict[str, Any] = {}
    for environment, recipe in RECIPES.items():
        if options.quick and environment != "Pendulum-v1":
            continue
        env_steps = recipe["env_steps"] // (16 if options.quick else 1)
        found = {
            form: in_process(
                __file__,
                asdict(Measurement(environment, form, env_steps, options.seeds, options.threads)),
            )
            for form in TITLES
        }
        _print(environment, env_steps, found)
        figures[environment] = {form: _summary(runs) for form, runs in found.items()}
    finish("h_term", figures, {})


def _print(environment: str, env_steps: int, found: dict[str, dict[str, Any]]) -> None:
    for key, title in (("final", "final greedy return"), ("area", "area under the curve")):
        print_table(
            f"{environment}, {env_steps:,} steps an agent: {title} over the seeds",
            ["", "mean", "variance", "least", "greatest"],
            [[TITLES[form], *_statistics(runs[key]).values()] for form, runs in found.items()],
        )
    columns = ("steps_per_second", "steps_per_processor_second")
    print_table(
        f"{environment}: environment steps/s of the cohort, by the clock and by the processor's "
        "time",
        ["", "clock", "÷ PPO", "processor", "÷ PPO"],
        [
            [
                TITLES[form],
                *(cell for key in columns for cell in (runs[key], runs[key] / found["off"][key])),
            ]
            for form, runs in found.items()
        ],
    )


def _statistics(values: list[float]) -> dict[str, float]:
    variance = statistics.variance(values) if len(values) > 1 else 0.0
    mean, least, greatest = statistics.mean(values), min(values), max(values)
    return {"mean": mean, "variance": variance, "least": least, "greatest": greatest}


def _summary(runs: dict[str, Any]) -> dict[str, Any]:
    return runs | {f"{key}_statistics": _statistics(runs[key]) for key in ("final", "area")}


def _train(measurement: Measurement) -> dict[str, Any]:
    import torch
    from lab.agents import Agents

    from podracer_core.catalogue import EnvironmentSpec
    from podracer_core.environments import make_vec_environment
    from podracer_core.evaluate import GreedyEvaluator
    from podracer_core.random_numbers import CONFIRMATION, SCREENING, evaluation_seeds

    torch.set_num_threads(measurement.threads)
    recipe, spec = RECIPES[measurement.environment], EnvironmentSpec(id=measurement.environment)
    settings = recipe["hyperparameters"] | {"h_term": measurement.form}
    agents = Agents("ppo", spec, range(measurement.agents), recipe["num_envs"], settings)
    algorithm, evaluator = (
        agents.algorithm,
        GreedyEvaluator(lambda n: make_vec_environment(spec, n)),
    )
    looks, taken, seconds, processor_seconds = [], 0, 0.0, 0.0
    while taken < measurement.env_steps:
        start, processor_start = time.perf_counter(), time.process_time()
        agents.train()
        seconds += time.perf_counter() - start
        processor_seconds += time.process_time() - processor_start
        taken += algorithm.horizon * recipe["num_envs"]
        if taken >= (len(looks) + 1) * measurement.env_steps / LOOKS:
            fresh = evaluation_seeds(0, SCREENING, LOOK_EPISODES, first=LOOK_EPISODES * len(looks))
            looks.append([result.mean for result in evaluator.evaluate(algorithm.actor, fresh)])
    final = evaluator.evaluate(algorithm.actor, evaluation_seeds(0, CONFIRMATION, FINAL_EPISODES))
    return {
        "final": [result.mean for result in final],
        "area": [statistics.mean(curve) for curve in zip(*looks, strict=True)],
        "steps_per_second": taken * measurement.agents / seconds,
        "steps_per_processor_second": taken * measurement.agents / processor_seconds,
    }


if __name__ == "__main__":
    main()
