"""FlashSAC beside our SAC on MuJoCo tasks: return over environment steps, and over seconds of
training.

One environment and one gradient step for each of its steps. SAC and FlashSAC's presets S and M
train with their defaults for 100,000 steps. A look is 10 greedy episodes every 10,000 steps, the
same ones for every agent.

On a CUDA device the seeds are the members of one cohort; physics and policy stay on the CPU, which
takes eight steps while the device makes the gradient steps of the eight before.

An agent that has ended is a line of `--results` and is not trained again; what is in
docs/benchmarks/flagship.jsonl is known, too. One that was interrupted goes on from its last look,
in fresh episodes. Returns do not depend on how busy the machine is; seconds do."""

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
from report import Target, finish, print_table, read_lines, versions

from podracer_core.algorithms.algorithm import Algorithm, algorithm_class
from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.checkpoint import load_checkpoint, save_checkpoint
from podracer_core.collect import Collector
from podracer_core.device.cuda_graphs import map_tensors
from podracer_core.device.torch_settings import set_up_torch
from podracer_core.environments.registry import make_vec_environment
from podracer_core.errors import NotFound
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.random_numbers import evaluation_seeds
from podracer_core.storage.object_store import ObjectStore
from podracer_platform.storage import open_store

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
AUTHORS = 9_815  # FlashSAC, preset M, HalfCheetah-v4 after 100,000 steps
QUICK_STEPS, QUICK = 900, {"hidden_sizes": (32, 32), "batch_size": 32}


Looks = list[tuple[int, float, float]]


@dataclass(frozen=True)
class Run:
    """An agent's looks: steps taken, mean return, seconds of training so far (of all seeds where
    they are a cohort)."""

    task: str
    system: str
    seed: int
    steps: int
    looks: Looks
    device: str = "cpu"

    @property
    def score(self) -> float:
        """The mean of the last three looks."""
        return statistics.fmean(value for _, value, _ in self.looks[-LAST_LOOKS:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="HalfCheetah, 900 steps, narrow networks: under a minute",
    )
    parser.add_argument(
        "--task", action="append", choices=TASKS, help="only this one; may be repeated"
    )
    parser.add_argument(
        "--system", action="append", choices=SYSTEMS, help="only this one; may be repeated"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=10_000, help="steps between two looks")
    parser.add_argument("--device", default="cpu", help="of the gradient steps: cpu or cuda")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="trained agents, a JSON line each"
    )
    options = parser.parse_args()
    tasks, systems = options.task or TASKS, options.system or ["sac", "flash_s"]
    if options.quick:
        options.seeds, options.steps, options.every = 1, QUICK_STEPS, 300
        options.results, tasks = (
            Path(tempfile.mkdtemp(prefix="flagship-"), "quick.jsonl"),
            TASKS[:1],
        )
    print(versions("torch", "mujoco-core", "gymnasium"), "· 1 torch thread", flush=True)
    torch.set_num_threads(1)
    set_up_torch(None)
    results = options.results.absolute()
    results.parent.mkdir(parents=True, exist_ok=True)
    known = _read(results) if options.quick else _read(RECORD, results)
    for task in tasks:
        for system in systems:
            missing = [
                s for s in range(options.seeds) if (task, system, s, options.steps) not in known
            ]
            for seeds in (
                [missing] if options.device != "cpu" and missing else [[seed] for seed in missing]
            ):
                training = Training(
                    task, system, seeds, options.steps, options.every, options.device
                )
                for run in training.run(results.parent):
                    known[run.task, run.system, run.seed, run.steps] = run
                    with results.open("a") as file:
                        file.write(_line(run))
    if not options.quick:
        RECORD.write_text("".join(_line(known[key]) for key in sorted(known)))
        _draw([run for run in known.values() if run.steps == options.steps])
    _report(
        [run for run in known.values() if run.steps == options.steps and run.seed < options.seeds],
        tasks,
    )


class WeightsOnTheWay:
    """The actors' weights after all gradient steps that were started, copied to the CPU while it
    does other things."""

    def __init__(self, algorithm: Algorithm) -> None:
        state = algorithm.actor_state()
        self._copies = {name: tensor.to("cpu", non_blocking=True) for name, tensor in state.items()}
        self._copied = torch.cuda.Event()
        self._copied.record()

    def wait(self) -> dict[str, torch.Tensor]:
        self._copied.synchronize()
        return self._copies


@dataclass(frozen=True)
class Training:
    """Of the agents of some seeds, as one cohort."""

    task: str
    system: str
    seeds: Sequence[int]
    steps: int
    every: int
    device: str

    def run(self, folder: Path) -> list[Run]:
        """Train, or go on after the last looks kept below `folder`."""
        store = open_store(f"file://{folder}/flagship")
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)  # MuJoCo writes its log where it stands
            make = functools.partial(
                make_vec_environment, EnvironmentSpec(id=self.task), processes=1
            )
            environment, evaluator = make(len(self.seeds)), GreedyEvaluator(make)
            spaces = environment.observation_space, environment.action_space
            cohort = self._cohort()
            algorithm = algorithm_class(cohort.algorithm)(cohort, *spaces, self.device)
            actor = (
                algorithm.actor if self.device == "cpu" else algorithm.make_actor(cohort, *spaces)
            )
            looks = self._resume(store, algorithm)
            if actor is not algorithm.actor:
                actor.load_state(algorithm.actor_state())
            sessions = torch.tensor([seed + len(looks[0]) for seed in self.seeds])
            collector = Collector(environment, actor, sessions)
            taken, seconds = (looks[0][-1][0], looks[0][-1][2]) if looks[0] else (0, 0.0)
            start = time.perf_counter() - seconds
            weights = WeightsOnTheWay(algorithm) if self.device != "cpu" else None
            while taken < self.steps:
                rollout = collector.collect(algorithm.horizon, policy_version=algorithm.version)
                if weights is not None:
                    actor.load_state(weights.wait())
                algorithm.update(map_tensors(rollout, lambda tensor: tensor.to(self.device)))
                if weights is not None:
                    weights = WeightsOnTheWay(algorithm)
                taken += rollout.horizon
                if taken // self.every > len(looks[0]):
                    actor.load_state(algorithm.actor_state())
                    seconds = time.perf_counter() - start
                    results = evaluator.evaluate(actor, evaluation_seeds(0, 0, EPISODES))
                    for own, result in zip(looks, results, strict=True):
                        own.append((taken, result.mean, round(seconds, 1)))
                    self._save(store, algorithm, looks)
                    print(
                        f"{self._name}: {taken:,} steps, {_means(looks)}, {seconds:,.0f} s",
                        flush=True,
                    )
                    start = time.perf_counter() - seconds
            environment.close()
            evaluator.close()
            os.chdir(ROOT)
        for seed in self.seeds:
            store.delete_prefix(self._place(seed))
        found = zip(self.seeds, looks, strict=True)
        return [
            Run(self.task, self.system, seed, self.steps, own, self.device) for seed, own in found
        ]

    @property
    def _name(self) -> str:
        return f"{self.task}, {TITLES[self.system]}, seed {', '.join(map(str, self.seeds))}"

    def _cohort(self) -> CohortConfig:
        name, shared = SYSTEMS[self.system]
        shared = shared | {"learning_starts": min(10_000, self.steps // 3)}
        if name == "flash_sac":
            shared |= {"schedule_updates": self.steps}
        if self.device != "cpu":
            shared |= {"horizon": 8}
        if self.steps == QUICK_STEPS:
            shared |= QUICK
        return CohortConfig(
            name, tuple(MemberConfig(f"{self.system}-{seed}", seed) for seed in self.seeds), shared
        )

    def _place(self, seed: int) -> str:
        return f"{self.task}/{self.system}/{seed}/{self.steps}/"

    def _save(self, store: ObjectStore, algorithm: Algorithm, looks: Sequence[Looks]) -> None:
        for member, (seed, own) in enumerate(zip(self.seeds, looks, strict=True)):
            groups = {**algorithm.member_state(member), "replay": algorithm.replay_state(member)}
            save_checkpoint(store, f"{self._place(seed)}{len(own)}/", groups, {"looks": list(own)})
        for seed in self.seeds:  # all of them, so that a cohort goes on from one place
            store.put(f"{self._place(seed)}newest", str(len(looks[0])).encode())
            store.delete_prefix(f"{self._place(seed)}{len(looks[0]) - 1}/")

    def _resume(self, store: ObjectStore, algorithm: Algorithm) -> list[Looks]:
        try:
            newest = [store.get(f"{self._place(seed)}newest").decode() for seed in self.seeds]
        except NotFound:
            return [[] for _ in self.seeds]
        if len(set(newest)) > 1:
            raise SystemExit(
                f"{self._name}: stopped while it was written; remove {self._place(self.seeds[0])}"
            )
        checkpoints = [
            load_checkpoint(store, f"{self._place(seed)}{newest[0]}/") for seed in self.seeds
        ]
        groups = [dict(checkpoint.groups) for checkpoint in checkpoints]
        algorithm.load_replay_states([own.pop("replay") for own in groups])
        for member, own in enumerate(groups):
            algorithm.load_member_state(member, own)
        return [
            [tuple(look) for look in checkpoint.metadata["looks"]] for checkpoint in checkpoints
        ]


def _means(looks: Sequence[Looks]) -> str:
    return ", ".join(f"{own[-1][1]:,.0f}" for own in looks)


def _line(run: Run) -> str:
    return json.dumps(asdict(run)) + "\n"


def _read(*files: Path) -> dict[tuple[str, str, int, int], Run]:
    runs = [Run(**fields) for fields in read_lines(*files)]
    return {(run.task, run.system, run.seed, run.steps): run for run in runs}


def _report(runs: Sequence[Run], tasks: Sequence[str]) -> None:
    rows, targets = [], {}
    for task in tasks:
        scores = {
            system: [run.score for run in runs if (run.task, run.system) == (task, system)]
            for system in SYSTEMS
        }
        for system, found in scores.items():
            if found:
                seconds = statistics.median(
                    r.looks[-1][2] for r in runs if (r.task, r.system) == (task, system)
                )
                rows.append(
                    [
                        task,
                        TITLES[system],
                        statistics.fmean(found),
                        min(found),
                        max(found),
                        len(found),
                        seconds,
                    ]
                )
        if scores["sac"] and scores["flash_s"]:
            least, _ = interval(scores["flash_s"], scores["sac"])
            targets[f"{task}: FlashSAC S above SAC, lower end of the 95 % interval"] = Target(
                least, 0.0
            )
        if task == "HalfCheetah-v5" and scores["flash_m"]:
            targets[f"{task}: FlashSAC M over the authors' return on v4"] = Target(
                statistics.fmean(scores["flash_m"]) / AUTHORS, 0.9
            )
    columns = [
        "task",
        "algorithm",
        "mean of the last looks",
        "least",
        "greatest",
        "seeds",
        "seconds",
    ]
    print_table("Greedy return", columns, rows)
    finish("flagship", {f"{r.task} {r.system} {r.seed}": r.looks for r in runs}, targets)


def _draw(runs: Sequence[Run]) -> None:
    """Every seed's return, over steps above and over seconds below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    for row, (axis, label) in zip(
        figure.subplots(2, len(TASKS)), ((0, "steps"), (2, "seconds")), strict=True
    ):
        for axes, task in zip(row, TASKS, strict=True):
            for color, system in enumerate(SYSTEMS):
                for number, run in enumerate(
                    r for r in runs if (r.task, r.system) == (task, system)
                ):
                    title = None if number else TITLES[system]
                    axes.plot(
                        [look[axis] for look in run.looks],
                        [look[1] for look in run.looks],
                        color=f"C{color}",
                        label=title,
                    )
            axes.set(title=task, xlabel=label, ylabel="mean greedy return")
        row[0].legend(frameon=False)
    figure.savefig(RECORD.with_suffix(".png"), dpi=100)


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
