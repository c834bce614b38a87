"""SAC and TD3 beside Stable-Baselines3 and, where it is installed, SBX (its port to JAX), learning
included.

(a) seconds of training to a confirmed greedy mean of -200 on Pendulum-v1 with SAC, each system at
its best recipe: ours
    is RECIPE, the peers' the settings of the zoo at the thread count at which they were faster in (b). Every look at a
    policy costs its system time: 8 screening episodes and, if their mean passes, 100 others that confirm. Compiling
    counts as it does for the user of SBX; starting Python, importing and making the agent count for no system.
(b) steps/s with the same settings: one environment, exactly one update a step, batch 256, networks
of 256-256 relu, on
    Pendulum-v1 and HalfCheetah-v5. Here the first WARM_UP_STEPS, with them SBX's compiling, come before the clock.
    A cohort of 4 of ours, each with an environment, batch and networks of its own, beside one: time per step of all;
    the same with the recipe of (a). Where the processor has AMX, ours also with factors of products in bfloat16.

Every figure is measured in a process of its own, the systems in turn, with the same number of
threads. Each system uses its own environment of that id: our Pendulum is a batched tensor program,
our HalfCheetah runs in a second process."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from report import Target, finish, last_line, print_table, spread, versions

# (a), ours. `threads` are torch's; a look comes after every `look_steps` environment steps; the
# rest is SAC's own.
RECIPE: dict[str, Any] = {
    "threads": 1,
    "num_envs": 8,
    "look_steps": 400,
    "hyperparameters": {
        "hidden_sizes": (64, 64),
        "batch_size": 128,
        "horizon": 2,
        "updates_per_step": 0.5,
        "learning_rate": 3e-3,
        "target_rate": 0.02,
        "learning_starts": 400,
        "replay_capacity": 20_000,
    },
}
# (a), the peers': Pendulum-v1 in hyperparams/sac.yml of rl-baselines3-zoo; it sets nothing else but
# 20,000 steps.
ZOO = {"learning_rate": 1e-3}
TARGET_RETURN = -200.0
EPISODE_STEPS = 200
STEP_LIMIT = 100_000  # of (a): who has not arrived by then has failed
# (b)
HIDDEN_SIZES, BATCH_SIZE, LEARNING_STARTS = (256, 256), 256, 100
WARM_UP_STEPS = 250
# ours takes so many steps, then makes so many updates; the peers one and one, their libraries'
# default
HORIZON = 8
COHORT = 4
TITLES = {
    "ours": "Podracer",
    "bf16": "Podracer, products in bf16",
    "cohort": f"Podracer, cohort of {COHORT}",
    "sb3": "Stable-Baselines3",
    "sbx": "SBX (JAX)",
}

# (algorithm, environment) -> threads -> system
Speeds = dict[tuple[str, str], dict[int, dict[str, list[float]]]]


@dataclass(frozen=True)
class Measurement:
    """What one worker process measures. `seconds` is the length of a speed measurement after its
    warm-up."""

    task: str
    system: str
    algorithm: str
    environment: str
    threads: int
    seed: int
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one repeat, Pendulum, one thread: under a minute"
    )
    parser.add_argument("--seeds", type=int, default=5, help="seeds of (a), repeats of (b)")
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="thread counts to compare in (b)"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measurement = Measurement(**json.loads(options.worker))
        print(json.dumps(WORKERS[measurement.task, measurement.system](measurement)))
        return
    if options.quick:
        options.seeds, options.threads = 1, [min(options.threads)]
    sbx = ("sbx-rl", "jax") if _sbx_is_installed() else ()
    model = next(
        (
            line.split(": ")[1]
            for line in _processor().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    print(
        versions("torch", "stable-baselines3", *sbx, "gymnasium"),
        f"· {model} · {options.seeds} repeats",
    )

    speeds = _measure_speeds(options)
    for (algorithm, environment), by_threads in speeds.items():
        _print_speeds(f"(b) {algorithm} on {environment}", by_threads)
    results = _solve_all(options, speeds["sac", "Pendulum-v1"])
    print_table(
        f"(a) sac on Pendulum-v1: seconds of training to a confirmed {TARGET_RETURN:.0f}, median "
        "(least – greatest)",
        ["system", "seconds", "environment steps", "threads"],
        [_solved_row(name, runs) for name, runs in results.items()],
    )
    recipe = _measure_recipe(options)
    print_table(
        "(a) the recipe: environment steps/s, median (least – greatest)",
        ["system", "steps/s"],
        [[TITLES[system], spread(found)] for system, found in recipe.items()],
    )
    targets = _targets(speeds, results)
    time_ratio = COHORT * _paired(recipe["ours"], recipe["cohort"])
    targets["a_cohort_time_over_one"] = Target(time_ratio, 2.5, at_most=True)
    finish(
        "off_policy",
        {**_figures(speeds), "to_target": results, "recipe_steps_per_second": recipe},
        targets,
    )


def _measure_recipe(options: argparse.Namespace) -> dict[str, list[float]]:
    speeds: dict[str, list[float]] = {"ours": [], "cohort": []}
    for seed in range(options.seeds):
        for system, found in speeds.items():
            what = Measurement("recipe", system, "sac", "Pendulum-v1", RECIPE["threads"], seed, 2.0)
            found.append(_in_process(what)["steps_per_second"])
    return speeds


def _measure_speeds(options: argparse.Namespace) -> Speeds:
    seconds = 2.0 if options.quick else 5.0
    environments = ("Pendulum-v1",) if options.quick else ("Pendulum-v1", "HalfCheetah-v5")
    speeds: Speeds = {
        (a, e): {t: {} for t in options.threads} for e in environments for a in ("sac", "td3")
    }
    for seed in range(options.seeds):
        for (algorithm, environment), by_threads in speeds.items():
            for threads, by_system in by_threads.items():
                for system in _systems(algorithm, environment, options.quick):
                    what = Measurement(
                        "speed", system, algorithm, environment, threads, seed, seconds
                    )
                    by_system.setdefault(system, []).append(_in_process(what)["steps_per_second"])
    return speeds


def _systems(algorithm: str, environment: str, quick: bool) -> list[str]:
    """In the order in which they run: what is compared by a ratio runs one after the other."""
    cohort = (
        ["cohort"] if environment == "Pendulum-v1" and not (quick and algorithm == "td3") else []
    )
    sbx = ["sbx"] if _sbx_is_installed() and not quick else []
    bf16 = ["bf16"] if "amx_bf16" in _processor() else []
    return [*cohort, *bf16, "ours", "sb3", *sbx]


def _solve_all(
    options: argparse.Namespace, speeds: dict[int, dict[str, list[float]]]
) -> dict[str, list[dict]]:
    # The peers need most of a minute each, so the quick run shows only that ours arrives.
    threads = {"ours": RECIPE["threads"]}
    if not options.quick:
        peers = ("sb3", "sbx") if _sbx_is_installed() else ("sb3",)
        threads |= {peer: _best_threads(speeds, peer) for peer in peers}
    results: dict[str, list[dict]] = {system: [] for system in threads}
    for seed in range(options.seeds):
        for system, runs in results.items():
            found = _in_process(
                Measurement("solve", system, "sac", "Pendulum-v1", threads[system], seed)
            )
            runs.append({**found, "threads": threads[system]})
    return results


def _targets(speeds: Speeds, results: dict[str, list[dict]]) -> dict[str, Target]:
    targets = {}
    for peer, limit in (("sb3", 0.2), ("sbx", 0.5)):
        if peer in results:
            ours, theirs = (
                statistics.median(run["seconds"] for run in results[name])
                for name in ("ours", peer)
            )
            targets[f"a_seconds_over_{peer}"] = Target(ours / theirs, limit, at_most=True)
    for (algorithm, environment), by_threads in speeds.items():
        if environment != "Pendulum-v1":
            continue
        if 1 in by_threads:
            one = by_threads[1]
            for ours, peer, least in (
                ("ours", "sb3", 2.0),
                ("ours", "sbx", 0.95),
                ("bf16", "sbx", 1.2),
            ):
                if ours in one and peer in one:
                    targets[f"b_{algorithm}_{ours}_over_{peer}_at_1_thread"] = Target(
                        _paired(one[ours], one[peer]), least
                    )
            if "cohort" in one:
                time_ratio = COHORT * _paired(one["ours"], one["cohort"])
                targets[f"b_{algorithm}_cohort_time_over_one"] = Target(
                    time_ratio, 4.0, at_most=True
                )
    return targets


def _print_speeds(title: str, by_threads: dict[int, dict[str, list[float]]]) -> None:
    rows = []
    for system in next(iter(by_threads.values())):
        row = [TITLES[system]]
        for by_system in by_threads.values():
            row += [
                spread(by_system[system]),
                f"{_paired(by_system[system], by_system['sb3']):.2f}",
            ]
        rows.append(row)
    header = [text for threads in by_threads for text in (f"threads: {threads}", "÷ SB3")]
    title += ": environment steps/s, median (least – greatest), and the median of the paired ratios"
    print_table(title, ["system", *header], rows)


def _solved_row(system: str, runs: list[dict]) -> list[object]:
    seconds, steps = ([run[key] for run in runs] for key in ("seconds", "env_steps"))
    return [TITLES[system], spread(seconds), spread(steps), runs[0]["threads"]]


def _paired(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios, each of two runs of the same round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _best_threads(by_threads: dict[int, dict[str, list[float]]], system: str) -> int:
    return max(by_threads, key=lambda threads: statistics.median(by_threads[threads][system]))


def _figures(speeds: Speeds) -> dict[str, Any]:
    over_sb3 = {
        f"{algorithm} {environment}": {
            threads: _paired(by["ours"], by["sb3"]) for threads, by in by_threads.items()
        }
        for (algorithm, environment), by_threads in speeds.items()
    }
    steps = {
        f"{algorithm} {environment}": by_threads
        for (algorithm, environment), by_threads in speeds.items()
    }
    return {"steps_per_second": steps, "over_sb3": over_sb3}


def _sbx_is_installed() -> bool:
    return importlib.util.find_spec("sbx") is not None


def _processor() -> str:
    """What Linux says of the first one: its name and what it can do."""
    file = Path("/proc/cpuinfo")
    return file.read_text().split("\n\n")[0] if file.exists() else ""


def _in_process(measurement: Measurement) -> dict[str, float]:
    command = [sys.executable, __file__, "--worker", json.dumps(asdict(measurement))]
    # JAX's threads; the worker sets torch's
    return last_line(command, PJRT_NPROC=str(measurement.threads))


class Looks:
    """The same looks for every system: 8 episodes and, if their mean is at the target, 100 others;
    fresh each time."""

    def __init__(self, seed: int, mean_return: Callable[[list[int]], float]) -> None:
        self._seed, self._mean_return, self._count = seed, mean_return, 0

    def confirm(self) -> bool:
        """True once the target is confirmed."""
        from podracer_core.random_numbers import CONFIRMATION, SCREENING, evaluation_seeds

        self._count += 1
        stages = ((SCREENING, 8), (CONFIRMATION, 100))
        fresh = (evaluation_seeds(self._seed, what, n, first=n * self._count) for what, n in stages)
        return all(self._mean_return(seeds) >= TARGET_RETURN for seeds in fresh)


def _make_ours(
    measurement: Measurement, members: int, num_envs: int, hyperparameters: dict[str, Any]
):
    import torch

    from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
    from podracer_core.catalogue.environments import EnvironmentSpec
    from podracer_core.collect import Collector
    from podracer_core.device import set_up_torch
    from podracer_core.environments import make_vec_environment

    set_up_torch(measurement.threads, "bf16" if measurement.system == "bf16" else "float32")
    name = measurement.algorithm
    seeds = [measurement.seed * 1000 + member for member in range(members)]
    cohort = CohortConfig(
        name, tuple(MemberConfig(f"agent-{seed}", seed) for seed in seeds), hyperparameters
    )
    environment = make_vec_environment(
        EnvironmentSpec(id=measurement.environment), members * num_envs, processes=1
    )
    algorithm = algorithm_class(name)(
        cohort, environment.observation_space, environment.action_space
    )
    return algorithm, Collector(environment, algorithm.actor, torch.tensor(seeds)), environment


def _speed_ours(measurement: Measurement) -> dict[str, float]:
    """Environment steps/s of all members together, each with one environment."""
    settings = {
        "hidden_sizes": HIDDEN_SIZES,
        "batch_size": BATCH_SIZE,
        "learning_starts": LEARNING_STARTS,
    }
    settings |= {"updates_per_step": 1.0, "horizon": HORIZON}
    members = COHORT if measurement.system == "cohort" else 1
    algorithm, collector, environment = _make_ours(measurement, members, 1, settings)

    def step() -> None:
        algorithm.update(collector.collect(algorithm.horizon, policy_version=algorithm.version))

    for _ in range(WARM_UP_STEPS // HORIZON):
        step()
    rounds, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < measurement.seconds:
        step()
        rounds += 1
    environment.close()
    return {"steps_per_second": rounds * HORIZON * members / elapsed}


def _speed_recipe(measurement: Measurement) -> dict[str, float]:
    """Environment steps/s of all members together with the recipe of (a)."""
    settings, members = RECIPE["hyperparameters"], COHORT if measurement.system == "cohort" else 1
    algorithm, collector, environment = _make_ours(
        measurement, members, RECIPE["num_envs"], settings
    )

    def step() -> None:
        algorithm.update(collector.collect(algorithm.horizon, policy_version=algorithm.version))

    while algorithm.gradient_steps < WARM_UP_STEPS:
        step()
    rounds, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < measurement.seconds:
        step()
        rounds += 1
    return {"steps_per_second": rounds * algorithm.horizon * environment.num_envs / elapsed}


def _solve_ours(measurement: Measurement) -> dict[str, float]:
    from podracer_core.environments.classic_control import Pendulum
    from podracer_core.evaluate import GreedyEvaluator

    algorithm, collector, environment = _make_ours(
        measurement, 1, RECIPE["num_envs"], RECIPE["hyperparameters"]
    )
    evaluator = GreedyEvaluator(Pendulum)
    looks = Looks(
        measurement.seed, lambda seeds: evaluator.evaluate(algorithm.actor, seeds)[0].mean
    )
    start = time.perf_counter()
    env_steps, next_look = 0, RECIPE["look_steps"]
    while env_steps < STEP_LIMIT:
        algorithm.update(collector.collect(algorithm.horizon, policy_version=algorithm.version))
        env_steps += algorithm.horizon * environment.num_envs
        if env_steps >= next_look:
            next_look += RECIPE["look_steps"]
            if looks.confirm():
                return {"seconds": time.perf_counter() - start, "env_steps": env_steps}
    raise SystemExit(f"not confirmed in {env_steps} steps")


def _make_peer(measurement: Measurement, settings: dict[str, Any]):
    import numpy as np
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(measurement.threads)
    if measurement.system == "sb3":
        import stable_baselines3 as library
    else:
        import sbx as library
    environment = make_vec_env(measurement.environment, n_envs=1, seed=measurement.seed)
    # its paper's exploration, which the peers leave to their users
    if measurement.algorithm == "td3":
        size = environment.action_space.shape[0]
        settings = {
            "action_noise": NormalActionNoise(np.zeros(size), np.full(size, 0.1)),
            **settings,
        }
    make = getattr(library, measurement.algorithm.upper())
    return make("MlpPolicy", environment, seed=measurement.seed, device="cpu", **settings)


def _speed_peer(measurement: Measurement) -> dict[str, float]:
    from stable_baselines3.common.callbacks import BaseCallback

    class Clock(BaseCallback):
        """Starts after the warm-up and ends the training when the time is over."""

        start = steps_per_second = 0.0

        def _on_step(self) -> bool:
            done = self.num_timesteps - WARM_UP_STEPS
            if done == 0:
                self.start = time.perf_counter()
            elapsed = time.perf_counter() - self.start
            if done <= 0 or elapsed < measurement.seconds:
                return True
            self.steps_per_second = done / elapsed
            return False

    settings = {
        "policy_kwargs": {"net_arch": list(HIDDEN_SIZES)},
        "batch_size": BATCH_SIZE,
        "train_freq": 1,
    }
    settings |= {"gradient_steps": 1, "learning_starts": LEARNING_STARTS}
    clock = Clock()
    _make_peer(measurement, settings).learn(1_000_000, callback=clock)
    return {"steps_per_second": clock.steps_per_second}


def _solve_peer(measurement: Measurement) -> dict[str, float]:
    """Looked at after every training episode, on our batched Pendulum, which is faster than the
    peer's own."""
    import numpy as np
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    from podracer_core.environments.classic_control import Pendulum

    def mean_return(seeds: list[int]) -> float:
        environment, returns = Pendulum(len(seeds)), torch.zeros(len(seeds))
        observation = environment.reset(torch.tensor(seeds))
        for _ in range(EPISODE_STEPS):
            action, _ = model.predict(observation.numpy(), deterministic=True)
            step = environment.step(torch.from_numpy(np.asarray(action, dtype=np.float32)))
            returns += step.reward
            observation = step.observation
        return float(returns.mean())

    class Confirm(BaseCallback):
        seconds: float | None = None

        def _on_step(self) -> bool:
            if self.num_timesteps % EPISODE_STEPS == 0 and looks.confirm():
                self.seconds = time.perf_counter() - start
            return self.seconds is None

    model = _make_peer(measurement, ZOO)
    looks = Looks(measurement.seed, mean_return)
    confirm = Confirm()
    start = time.perf_counter()
    model.learn(STEP_LIMIT, callback=confirm)
    if confirm.seconds is None:
        raise SystemExit(f"not confirmed in {model.num_timesteps} steps")
    return {"seconds": confirm.seconds, "env_steps": model.num_timesteps}


WORKERS: dict[tuple[str, str], Callable[[Measurement], dict[str, float]]] = {
    ("speed", "ours"): _speed_ours,
    ("speed", "bf16"): _speed_ours,
    ("speed", "cohort"): _speed_ours,
    ("speed", "sb3"): _speed_peer,
    ("speed", "sbx"): _speed_peer,
    ("recipe", "ours"): _speed_recipe,
    ("recipe", "cohort"): _speed_recipe,
    ("solve", "ours"): _solve_ours,
    ("solve", "sb3"): _solve_peer,
    ("solve", "sbx"): _solve_peer,
}

if __name__ == "__main__":
    main()
