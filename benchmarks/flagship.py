"""FlashSAC beside our SAC on MuJoCo tasks: return over environment steps, and over seconds of training.

One environment and one gradient step for each of its steps. SAC and FlashSAC's presets S and M train with their
defaults for 100,000 steps. A look is 10 greedy episodes every 10,000 steps, the same ones for every agent.

An agent that has ended is a line of `--results` and is not trained again; what is in docs/benchmarks/flagship.jsonl is
known, too. One that was interrupted goes on from its last look, in fresh episodes. Returns do not depend on how busy
the machine is; seconds do.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from report import Target, finish, print_table, versions

from podracer_core.algorithms.algorithm import Algorithm, algorithm_class
from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.checkpoint import load_checkpoint, save_checkpoint
from podracer_core.collect import Collector
from podracer_core.environments.registry import make_vec_environment
from podracer_core.errors import NotFound
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.random_numbers import evaluation_seeds
from podracer_core.storage import open_store
from podracer_core.storage.object_store import ObjectStore

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "runs" / "benchmarks" / "flagship.jsonl"
RECORD = ROOT / "docs" / "benchmarks" / "flagship.jsonl"
TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", {"learning_starts": 10_000}),
    "flash_s": ("flash_sac", {"hidden_sizes": (128, 128), "batch_size": 256}),
    "flash_m": ("flash_sac", {}),
}
TITLES = {"sac": "SAC", "flash_s": "FlashSAC, preset S", "flash_m": "FlashSAC, preset M"}
EPISODES, LAST_LOOKS, RESAMPLES = 10, 3, 10_000
QUICK_STEPS, QUICK = 900, {"hidden_sizes": (32, 32), "batch_size": 32}


@dataclass(frozen=True)
class Run:
    """An agent's looks: steps taken, mean return, seconds of training so far."""

    task: str
    system: str
    seed: int
    steps: int
    looks: list[tuple[int, float, float]]

    @property
    def score(self) -> float:
        """The mean of the last three looks."""
        return statistics.fmean(value for _, value, _ in self.looks[-LAST_LOOKS:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="HalfCheetah, 900 steps, narrow networks: under a minute")
    parser.add_argument("--task", action="append", choices=TASKS, help="only this one; may be repeated")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="only this one; may be repeated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=10_000, help="steps between two looks")
    parser.add_argument("--results", type=Path, default=RESULTS, help="trained agents, a JSON line each")
    options = parser.parse_args()
    tasks, systems = options.task or TASKS, options.system or ["sac", "flash_s"]
    if options.quick:
        options.seeds, options.steps, options.every = 1, QUICK_STEPS, 300
        options.results, tasks = Path(tempfile.mkdtemp(prefix="flagship-"), "quick.jsonl"), TASKS[:1]
    print(versions("torch", "mujoco", "gymnasium"), "· 1 torch thread", flush=True)
    torch.set_num_threads(1)
    results = options.results.absolute()
    results.parent.mkdir(parents=True, exist_ok=True)
    known = _read(results) if options.quick else _read(RECORD, results)
    for seed in range(options.seeds):
        for task in tasks:
            for system in systems:
                key = (task, system, seed, options.steps)
                if key not in known:
                    known[key] = _train(*key, options.every, results.parent)
                    with results.open("a") as file:
                        file.write(_line(known[key]))
    if not options.quick:
        RECORD.write_text("".join(_line(known[key]) for key in sorted(known)))
    _report([run for run in known.values() if run.steps == options.steps and run.seed < options.seeds], tasks)


def _train(task: str, system: str, seed: int, steps: int, every: int, folder: Path) -> Run:
    name, shared = SYSTEMS[system]
    if name == "flash_sac":
        shared = shared | {"schedule_updates": steps}
    shared = shared | {"learning_starts": min(10_000, steps // 3)}
    cohort = CohortConfig(name, (MemberConfig(system, seed),), shared | (QUICK if steps == QUICK_STEPS else {}))
    store, prefix = open_store(f"file://{folder}/flagship"), f"{task}/{system}/{seed}/{steps}/"
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # MuJoCo writes its log where it stands
        make = functools.partial(make_vec_environment, EnvironmentSpec(id=task), processes=1)
        environment, evaluator = make(1), GreedyEvaluator(make)
        algorithm = algorithm_class(name)(cohort, environment.observation_space, environment.action_space)
        looks = _resume(store, prefix, algorithm)
        collector = Collector(environment, algorithm.actor, torch.tensor([seed + len(looks)]))
        taken, seconds = (looks[-1][0], looks[-1][2]) if looks else (0, 0.0)
        start = time.perf_counter() - seconds
        while taken < steps:
            rollout = collector.collect(algorithm.horizon, policy_version=algorithm.version)
            algorithm.update(rollout)
            taken += rollout.env_steps
            if taken // every > len(looks):
                seconds = time.perf_counter() - start
                (result,) = evaluator.evaluate(algorithm.actor, evaluation_seeds(0, 0, EPISODES))
                looks.append((taken, result.mean, round(seconds, 1)))
                _save(store, prefix, algorithm, looks)
                print(
                    f"{task}, {TITLES[system]}, seed {seed}: {taken:,} steps, {result.mean:,.0f}, {seconds:,.0f} s",
                    flush=True,
                )
                start = time.perf_counter() - seconds
        environment.close()
        evaluator.close()
        os.chdir(ROOT)
    store.delete_prefix(prefix)
    return Run(task, system, seed, steps, looks)


def _save(store: ObjectStore, prefix: str, algorithm: Algorithm, looks: Sequence[tuple[int, float, float]]) -> None:
    groups = {**algorithm.member_state(0), "replay": algorithm.replay_state(0)}
    save_checkpoint(store, f"{prefix}{len(looks)}/", groups, {"looks": list(looks)})
    store.put(f"{prefix}newest", str(len(looks)).encode())
    store.delete_prefix(f"{prefix}{len(looks) - 1}/")


def _resume(store: ObjectStore, prefix: str, algorithm: Algorithm) -> list[tuple[int, float, float]]:
    try:
        newest = store.get(f"{prefix}newest").decode()
    except NotFound:
        return []
    checkpoint = load_checkpoint(store, f"{prefix}{newest}/")
    groups = dict(checkpoint.groups)
    algorithm.load_replay_states([groups.pop("replay")])
    algorithm.load_member_state(0, groups)
    return [tuple(look) for look in checkpoint.metadata["looks"]]


def _line(run: Run) -> str:
    return json.dumps(asdict(run)) + "\n"


def _read(*files: Path) -> dict[tuple[str, str, int, int], Run]:
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    runs = [Run(**json.loads(line)) for line in lines]
    return {(run.task, run.system, run.seed, run.steps): run for run in runs}


def _report(runs: Sequence[Run], tasks: Sequence[str]) -> None:
    rows, targets = [], {}
    for task in tasks:
        scores = {system: [run.score for run in runs if (run.task, run.system) == (task, system)] for system in SYSTEMS}
        for system, found in scores.items():
            if found:
                seconds = statistics.median(r.looks[-1][2] for r in runs if (r.task, r.system) == (task, system))
                rows.append(
                    [task, TITLES[system], statistics.fmean(found), min(found), max(found), len(found), seconds]
                )
        if scores["sac"] and scores["flash_s"]:
            least, _ = interval(scores["flash_s"], scores["sac"])
            targets[f"{task}: FlashSAC S above SAC, lower end of the 95 % interval"] = Target(least, 0.0)
    columns = ["task", "algorithm", "mean of the last looks", "least", "greatest", "seeds", "seconds"]
    print_table("Greedy return", columns, rows)
    finish("flagship", {f"{r.task} {r.system} {r.seed}": r.looks for r in runs}, targets)


def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the difference of means."""
    draw = random.Random(0).choices
    differences = sorted(
        statistics.fmean(draw(ours, k=len(ours))) - statistics.fmean(draw(theirs, k=len(theirs)))
        for _ in range(RESAMPLES)
    )
    return differences[int(0.025 * RESAMPLES)], differences[int(0.975 * RESAMPLES)]


if __name__ == "__main__":
    main()
