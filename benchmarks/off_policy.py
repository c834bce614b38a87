"""SAC and TD3 beside Stable-Baselines3 and, where it is installed, SBX (its port to JAX), learning
included.

(a) seconds of training to a confirmed greedy mean of -200 on Pendulum-v1 with SAC, each system at
    its best recipe: ours is RECIPE, the peers' the settings of the zoo at the thread count at which
    they were faster in (b). Every look at a policy costs its system time: 8 screening episodes and,
    if their mean passes, 100 others that confirm. Compiling counts as it does for the user of SBX;
    starting Python, importing and making the agent count for no system.
(b) steps/s with the same settings: one environment, exactly one update a step, batch 256, networks
    of 256-256 relu, on Pendulum-v1 and HalfCheetah-v5. Here the first WARM_UP_STEPS, with them
    SBX's compiling, come before the clock. A cohort of 4 of ours, each with an environment, batch
    and networks of its own, beside one: time per step of all; the same with the recipe of (a).
    Where the processor has AMX, ours also with factors of products in bfloat16.

Every figure is measured in a process of its own, the systems in turn, with the same number of
threads. Each system uses its own environment of that id: our Pendulum is a batched tensor program,
our HalfCheetah runs in a second process."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.arguments import arguments
from lab.processes import in_process
from lab.report import Target, finish, print_table, spread, versions
from lab.statistics import paired

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
    parser = arguments(
        __doc__, "one repeat, Pendulum, one thread: under a minute", seeds=5, worker=""
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="thread counts to compare in (b)"
    )
    options = parser.parse_args()
    if options.worker:
        measurement = Measurement(**json.loads(options.worker))
        print(json.dumps(WORKERS[measurement.task, measurement.system](measurement)))
        return
    if options.quick:
        options.seeds, options.threads = 1, [min(options.threads)]
    sbx = ("sbx-rl", "jax") if _sbx_is_installed() else ()
    lines = _processor().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    print(versions("torch", "stable-baselines3", *sbx, "gymnasium"), f"· {model}")

    speeds = _measure_speeds(options)
    for (algorithm, environment), by_threads in speeds.items():
        _print_speeds(f"(b) {algorithm} on {environment}", by_threads)
    results = _solve_all(options, speeds["sac", "Pendulum-v1"])
    print_table(
        f"(a) sac on Pendulum-v1: seconds of training to a confirmed {TARGET_RETURN:.0f}, median "
        "(least – greatest)",
        ["system", "seconds", "environment steps", "threads"],
        [
            [
                TITLES[name],
                *(spread(run[key] for run in runs) for key in ("seconds", "env_steps")),
                runs[0]["threads"],
            ]
            for name, runs in results.items()
        ],
    )
    recipe = _measure_recipe(options)
    print_table(
        "(a) the recipe: environment steps/s, median (least – greatest)",
        ["system", "steps/s"],
        [[TITLES[system], spread(found)] for system, found in recipe.items()],
    )
    targets = _targets(speeds, results)
    time_ratio = COHORT * paired(recipe["ours"], recipe["cohort"])
    targets["a_cohort_time_over_one"] = Target(time_ratio, 2.5, at_most=True)
    figures = {"to_target": results, "recipe_steps_per_second": recipe}
    finish("off_policy", _figures(speeds) | figures, targets)


def _measure_recipe(options: argparse.Namespace) -> dict[str, list[float]]:
    speeds: dict[str, list[float]] = {"ours": [], "cohort": []}
    for seed in range(options.seeds):
        for system, found in speeds.items():
            found.append(
                _pace("recipe", system, "sac", "Pendulum-v1", RECIPE["threads"], seed, 2.0)
            )
    return speeds


def _measure_speeds(options: argparse.Namespace) -> Speeds:
    seconds = 2.0 if options.quick else 5.0
    environments = ("Pendulum-v1",) if options.quick else ("Pendulum-v1", "HalfCheetah-v5")
    speeds: Speeds = {
        (a, e): {t: {} for t in options.threads} for e in environments for a in ("sac", "td3")
    }
    for seed in range(options.seeds):
        for task, by_threads in speeds.items():
            for threads, by_system in by_threads.items():
                for system in _systems(*task, options.quick):
                    found = _pace("speed", system, *task, threads, seed, seconds)
                    by_system.setdefault(system, []).append(found)
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
) -> dict[str, list[dict[str, Any]]]:
    # The peers need most of a minute each, so the quick run shows only that ours arrives.
    threads = {"ours": RECIPE["threads"]}
    if not options.quick:
        for peer in ("sb3", "sbx") if _sbx_is_installed() else ("sb3",):
            threads[peer] = max(speeds, key=lambda count: statistics.median(speeds[count][peer]))
    results: dict[str, list[dict[str, Any]]] = {system: [] for system in threads}
    for seed in range(options.seeds):
        for system, runs in results.items():
            found = _measured("solve", system, "sac", "Pendulum-v1", threads[system], seed)
            runs.append({**found, "threads": threads[system]})
    return results


def _targets(speeds: Speeds, results: dict[str, list[dict[str, Any]]]) -> dict[str, Target]:
    targets = {}
    seconds = {
        name: statistics.median(run["seconds"] for run in runs) for name, runs in results.items()
    }
    for peer, limit in (("sb3", 0.2), ("sbx", 0.5)):
        if peer in seconds:
            ratio = seconds["ours"] / seconds[peer]
            targets[f"a_seconds_over_{peer}"] = Target(ratio, limit, at_most=True)
    wanted = (("ours", "sb3", 2.0), ("ours", "sbx", 0.95), ("bf16", "sbx", 1.2))
    for (algorithm, environment), by_threads in speeds.items():
        one = by_threads.get(1, {}) if environment == "Pendulum-v1" else {}
        for ours, peer, least in wanted:
            if ours in one and peer in one:
                name = f"b_{algorithm}_{ours}_over_{peer}_at_1_thread"
                targets[name] = Target(paired(one[ours], one[peer]), least)
        if "cohort" in one:
            time_ratio = COHORT * paired(one["ours"], one["cohort"])
            name = f"b_{algorithm}_cohort_time_over_one"
            targets[name] = Target(time_ratio, 4.0, at_most=True)
    return targets


def _print_speeds(title: str, by_threads: dict[int, dict[str, list[float]]]) -> None:
    rows = []
    for system in next(iter(by_threads.values())):
        row = [TITLES[system]]
        for by_system in by_threads.values():
            ratio = paired(by_system[system], by_system["sb3"])
            row += [spread(by_system[system]), f"{ratio:.2f}"]
        rows.append(row)
    header = [text for threads in by_threads for text in (f"threads: {threads}", "÷ SB3")]
    title += ": environment steps/s, median (least – greatest), and the median of the paired ratios"
    print_table(title, ["system", *header], rows)


def _figures(speeds: Speeds) -> dict[str, Any]:
    named = {f"{algorithm} {task}": found for (algorithm, task), found in speeds.items()}
    over_sb3 = {
        name: {threads: paired(by["ours"], by["sb3"]) for threads, by in found.items()}
        for name, found in named.items()
    }
    return {"steps_per_second": named, "over_sb3": over_sb3}


def _sbx_is_installed() -> bool:
    return importlib.util.find_spec("sbx") is not None


def _processor() -> str:
    """What Linux says of the first one: its name and what it can do."""
    file = Path("/proc/cpuinfo")
    return file.read_text().split("\n\n")[0] if file.exists() else ""


def _measured(*what: Any) -> dict[str, Any]:
    measurement = Measurement(*what)
    # JAX's threads; the worker sets torch's
    return in_process(__file__, asdict(measurement), PJRT_NPROC=str(measurement.threads))


def _pace(*what: Any) -> float:
    return float(_measured(*what)["env_steps_per_second"])


def _make_ours(
    measurement: Measurement, members: int, num_envs: int, hyperparameters: dict[str, Any]
) -> Any:
    from lab.agents import Agents

    from podracer_core.catalogue import EnvironmentSpec
    from podracer_core.device import set_up_torch

    set_up_torch(measurement.threads, "bf16" if measurement.system == "bf16" else "float32")
    seeds = [measurement.seed * 1000 + member for member in range(members)]
    environment = EnvironmentSpec(id=measurement.environment)
    name = measurement.algorithm
    return Agents(name, environment, seeds, num_envs, hyperparameters, processes=1)


def _speed_ours(measurement: Measurement) -> dict[str, float]:
    """Environment steps/s of all members together: each with one environment, or with the recipe
    of (a)."""
    members = COHORT if measurement.system == "cohort" else 1
    if measurement.task == "recipe":
        agents = _make_ours(measurement, members, RECIPE["num_envs"], RECIPE["hyperparameters"])
    else:
        settings = {"hidden_sizes": HIDDEN_SIZES, "batch_size": BATCH_SIZE, "horizon": HORIZON}
        settings |= {"learning_starts": LEARNING_STARTS, "updates_per_step": 1.0}
        agents = _make_ours(measurement, members, 1, settings)
    while agents.algorithm.gradient_steps < WARM_UP_STEPS - LEARNING_STARTS:
        agents.train()
    pace = agents.pace(measurement.seconds)
    agents.environment.close()
    return {"env_steps_per_second": pace}


def _solve_ours(measurement: Measurement) -> dict[str, float]:
    import torch
    from peers.ppo_watch import GreedyReturns

    agents = _make_ours(measurement, 1, RECIPE["num_envs"], RECIPE["hyperparameters"])
    actor, returns = agents.algorithm.actor, GreedyReturns("Pendulum-v1", measurement.seed)

    def greedy(observation: Any) -> Any:
        return actor.greedy(torch.from_numpy(observation)[None])[0].numpy()

    start = time.perf_counter()
    env_steps, next_look = 0, RECIPE["look_steps"]
    while env_steps < STEP_LIMIT:
        agents.train()
        env_steps += agents.steps
        if env_steps >= next_look:
            next_look += RECIPE["look_steps"]
            if returns.judge(greedy, TARGET_RETURN) >= TARGET_RETURN:
                return {"seconds": time.perf_counter() - start, "env_steps": env_steps}
    raise SystemExit(f"not confirmed in {env_steps} steps")


def _make_peer(measurement: Measurement, settings: dict[str, Any]) -> Any:
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
        noise = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
        settings = {"action_noise": noise, **settings}
    make = getattr(library, measurement.algorithm.upper())
    return make("MlpPolicy", environment, seed=measurement.seed, device="cpu", **settings)


def _speed_peer(measurement: Measurement) -> dict[str, float]:
    from peers.baselines import learn_until

    settings = {"policy_kwargs": {"net_arch": list(HIDDEN_SIZES)}, "batch_size": BATCH_SIZE}
    settings |= {"train_freq": 1, "gradient_steps": 1, "learning_starts": LEARNING_STARTS}
    begun, found = 0.0, 0.0

    def is_over(env_steps: int) -> bool:
        nonlocal begun, found
        done = env_steps - WARM_UP_STEPS
        if done <= 0:
            begun = time.perf_counter()
            return False
        seconds = time.perf_counter() - begun
        found = done / seconds
        return seconds >= measurement.seconds

    learn_until(_make_peer(measurement, settings), is_over, every=1)
    return {"env_steps_per_second": found}


def _solve_peer(measurement: Measurement) -> dict[str, float]:
    """Looked at after every training episode, on our batched Pendulum, which is faster than the
    peer's own."""
    from peers.baselines import learn_until
    from peers.ppo_watch import GreedyReturns

    model, returns = _make_peer(measurement, ZOO), GreedyReturns("Pendulum-v1", measurement.seed)
    start, taken = time.perf_counter(), 0

    def greedy(observation: Any) -> Any:
        return model.predict(observation, deterministic=True)[0]

    def is_over(env_steps: int) -> bool:
        nonlocal taken
        taken = env_steps
        if taken >= STEP_LIMIT:
            raise SystemExit(f"not confirmed in {taken} steps")
        return returns.judge(greedy, TARGET_RETURN) >= TARGET_RETURN

    learn_until(model, is_over, every=EPISODE_STEPS)
    return {"seconds": time.perf_counter() - start, "env_steps": taken}


WORKERS: dict[tuple[str, str], Callable[[Measurement], dict[str, float]]] = {
    **{("speed", system): _speed_ours for system in ("ours", "bf16", "cohort")},
    **{("recipe", system): _speed_ours for system in ("ours", "cohort")},
    **{("speed", system): _speed_peer for system in ("sb3", "sbx")},
    **{("solve", system): _solve_peer for system in ("sb3", "sbx")},
    ("solve", "ours"): _solve_ours,
}

if __name__ == "__main__":
    main()
