"""Environment steps/s of whole pods, learning included: split against fused, collecting ahead
against lock-step, one to four workers.

Every row is `podracer run` of a job with one agent and one pod: real processes (orchestrator,
leaderboard, learner, in the split layout workers and an evaluator too), on the cores that there
are. Steps/s are what the learner tells of the last five seconds, the median of what it told once it
had settled. The rows of an environment take turns, repeat after repeat.

`ahead` is what PODRACER_COLLECT_AHEAD says: 0 is lock-step, 1 and 2 are rollouts that workers
collect while the learner trains; with `auto` the learner decides by its first twelve rollouts, and
the table says what it has chosen."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.arguments import ROOT, arguments
from lab.processes import Measured, run_job
from lab.report import Target, finish, print_table, spread, versions
from lab.statistics import paired

START_S, END_S = 4.0, 60.0


@dataclass(frozen=True)
class Task:
    """What is trained: the sections of its job file, and how long its first twelve rollouts take at
    most."""

    title: str
    environment: Mapping[str, Any]
    space: Mapping[str, Any]
    envs: int
    settle_s: float
    data: Mapping[str, str] | None = None


_MARKET = {
    "train_end": "2021-06-30",
    "gaps": "forward_fill",
    "max_stock": 2000,
    "turbulence_window": 60,
}
TASKS = {
    "cartpole": Task(
        "CartPole-v1",
        {"id": "CartPole-v1"},
        {"horizon": 32, "minibatch_size": 2048, "epochs": 4, "hidden_sizes": [64, 64]},
        256,
        8.0,
    ),
    "ant": Task(
        "Ant-v5",
        {"id": "Ant-v5"},
        {"horizon": 64, "minibatch_size": 1024, "epochs": 10, "hidden_sizes": [64, 64]},
        64,
        20.0,
    ),
    "stock_trading": Task(
        "StockTrading-v0",
        {"id": "StockTrading-v0", "kwargs": _MARKET},
        {"horizon": 32, "minibatch_size": 512, "epochs": 4},
        256,
        8.0,
        {"table": str(ROOT / "examples" / "stock_trading" / "prices.csv")},
    ),
    # A rollout takes half a second of sleep, and training on it is not much less work.
    "sleeping": Task(
        "sleeps 2 ms a step",
        {"entry_point": "sleeping:Sleeping", "code": str(ROOT / "benchmarks" / "sleeping")},
        {"horizon": 32, "minibatch_size": 64, "epochs": 16, "hidden_sizes": [256, 256]},
        16,
        20.0,
    ),
}
"""The environment dominates in Ant-v5 and in the one that sleeps."""


@dataclass(frozen=True)
class Pod:
    """How a task is run; no workers: fused."""

    workers: int = 0
    ahead: str = "auto"

    @property
    def name(self) -> str:
        return f"split, workers {self.workers}, ahead {self.ahead}" if self.workers else "fused"


FUSED, LOCK_STEP, AHEAD = Pod(), Pod(1, "0"), Pod(1, "2")
PODS = (FUSED, LOCK_STEP, Pod(1, "1"), AHEAD, Pod(1), Pod(2), Pod(3), Pod(4))
QUICK = {"cartpole": (Pod(1),), "sleeping": (FUSED, LOCK_STEP, AHEAD)}

Speeds = dict[str, dict[Pod, list[float]]]
Choices = dict[str, dict[Pod, list[str]]]


def main() -> None:
    parser = arguments(
        __doc__, "four rows, some seconds each: under a minute", repeats=3, seconds=12.0
    )
    parser.add_argument(
        "--only", nargs="+", choices=sorted(TASKS), default=list(TASKS), help="environments"
    )
    options = parser.parse_args()
    rows = {name: PODS for name in TASKS if name in options.only}
    if options.quick:
        options.repeats, options.seconds = 1, 3.0
        rows = {name: QUICK[name] for name in rows if name in QUICK}
    print(
        versions("torch", "mujoco-core", "gymnasium"),
        f"· {options.repeats} × {options.seconds:g} s",
        flush=True,
    )
    speeds: Speeds = {name: {pod: [] for pod in pods} for name, pods in rows.items()}
    choices: Choices = {name: {pod: [] for pod in pods} for name, pods in rows.items()}
    for name, pods in rows.items():
        for _ in range(options.repeats):
            for pod in pods:
                speed, choice = _measure(TASKS[name], pod, options)
                speeds[name][pod].append(speed)
                choices[name][pod].append(choice)
                print(f"{TASKS[name].title}, {pod.name}: {speed:,.0f} steps/s", flush=True)
        _print(name, speeds[name], choices[name])
    figures = {
        name: {pod.name: found for pod, found in of_task.items()}
        for name, of_task in speeds.items()
    }
    chosen = {
        name: {pod.name: found for pod, found in of_task.items()}
        for name, of_task in choices.items()
    }
    finish("pipeline", {"steps_per_second": figures, "chosen_ahead": chosen}, _targets(speeds))


def job(task: Task, pod: Pod, seconds: float) -> dict[str, Any]:
    """The job file: one agent, trained in one round of so many seconds."""
    text: dict[str, Any] = {
        "name": "pipeline",
        "environment": dict(task.environment),
        "objective": {"max_duration": f"{seconds:g}s"},
        "search": {"algorithms": ["ppo"], "space": dict(task.space)},
        "evolution": {"population": 1, "leaderboard_size": 1, "round": {"seconds": seconds}},
        "pod": {
            "count": 1,
            "layout": "split" if pod.workers else "fused",
            "members": 1,
            "envs_per_member": task.envs,
            **({"workers": pod.workers} if pod.workers else {}),
        },
        "evaluation": {"episodes": 8},
        "seed": 0,
    }
    return text | ({"data": dict(task.data)} if task.data else {})


def _measure(task: Task, pod: Pod, options: argparse.Namespace) -> tuple[float, str]:
    """Steps/s, and how many rollouts workers have collected ahead."""
    settle_s = 2.0 if options.quick else task.settle_s
    with tempfile.TemporaryDirectory(prefix="pipeline-") as scratch:
        folder = Path(scratch)
        seconds = START_S + settle_s + options.seconds
        measured = run_job(
            job(task, pod, seconds),
            folder,
            seconds + END_S,
            PODRACER_COLLECT_AHEAD=pod.ahead,
            PODRACER_ALLOW_USER_CODE="true",
        )
        logs = "".join(path.read_text() for path in (folder / "runs").rglob("*learner*.log"))
        found = re.findall(r": (\d|none) (?:is|are) collected ahead", logs)
        decided = found[-1] if found else "not yet"
        choice = "" if not pod.workers else decided if pod.ahead == "auto" else pod.ahead
        return steady_pace(measured, settle_s), choice


def steady_pace(measured: Measured, settle_s: float) -> float:
    """The median of the paces that were told from `settle_s` after the first one on; of all, where
    that is later."""
    told = [
        (at, event["env_steps_per_second"])
        for at, event in measured.events
        if event.get("event") == "progress" and event["env_steps_per_second"] > 0
    ]
    if not told:
        raise SystemExit("the job has ended before its learner told a pace")
    settled = [pace for at, pace in told if at >= told[0][0] + settle_s]
    # Each is shown until the next renewal of the lease brings another one.
    return float(statistics.median(list(dict.fromkeys(settled)) or [told[-1][1]]))


def _print(
    name: str, speeds: Mapping[Pod, Sequence[float]], choices: Mapping[Pod, Sequence[str]]
) -> None:
    print_table(
        f"{TASKS[name].title}: environment steps/s, learning included, median (least – greatest)",
        ["pod", "collected ahead", "steps/s", "÷ fused", "÷ lock-step with one worker"],
        [
            [
                pod.name,
                ", ".join(sorted(set(choices[pod]))),
                spread(found),
                _ratio(speeds, pod, FUSED) or "–",
                (pod.workers and _ratio(speeds, pod, LOCK_STEP)) or "–",
            ]
            for pod, found in speeds.items()
        ],
    )
    sys.stdout.flush()


def _ratio(speeds: Mapping[Pod, Sequence[float]], one: Pod, other: Pod) -> float | None:
    """The median of the ratios of runs that followed one another; None where one was not
    measured."""
    if one not in speeds or other not in speeds:
        return None
    return paired(speeds[one], speeds[other])


def _targets(speeds: Speeds) -> dict[str, Target]:
    """Of those that were measured."""
    targets = {}
    for name in ("ant", "sleeping"):
        if name in speeds:
            split = Pod(1) if Pod(1) in speeds[name] else AHEAD
            targets[f"{name}_split_over_fused"] = Target(_ratio(speeds[name], split, FUSED), 0.9)
    for name, least in (("sleeping", 1.3), ("ant", 0.95)):
        if name in speeds:
            targets[f"{name}_ahead_over_lock_step"] = Target(
                _ratio(speeds[name], AHEAD, LOCK_STEP), least
            )
    return targets


if __name__ == "__main__":
    main()
