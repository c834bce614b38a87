"""What evolution gains: the policy that a tournament finds, beside random search and ASHA, for the
same device seconds.

tournament           `search.algorithms: auto`, each algorithm's own search space, the default
                     evolution of 8 agents
random               the same with `generator: random`: no agent is copied, stopped or replaced
asha                 the same with `generator: asha`, of up to 48 agents
halving              the same with `generator: halving`
fixed rounds, …      the tournament without one of its parts, or with a further one (`SYSTEMS`)

Each run is `podracer run` with a budget of device seconds, evaluation included
(`objective.max_cost`), and no target. All begin with the same portfolio. A budget lasts for nine
rounds' lengths of each of 8 agents: three rungs with η = 3. What counts is the mean of 100 fresh
episodes of the job's best policy afterwards, in trading its Sharpe ratio less that of holding, on
days that neither training nor selection has seen; normalized: 0 for an untrained policy, 1 for the
goal.

Seeds are paired: with the same seed all have the same portfolio. Intervals are 95 % of a stratified
bootstrap over the seeds of each task. The time to the goal is a part of the run, 1 if it was never
reached; on Pendulum-v1, a guard, the seconds are compared. A job has two pods. Runs are done seed
after seed, `--at-once` of them at a time; each ended run is a line of `--results` and is not
repeated. `--write` copies what is there to docs/benchmarks, with a picture."""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from lab.arguments import RECORDS, RESULTS, ROOT, arguments, quick_results
from lab.plots import panels
from lab.processes import PODRACER, run_job, run_measured
from lab.report import Target, finish, print_table, spread, versions
from lab.runs import Runs
from lab.statistics import Array, estimate, interval, resampled
from lab.statistics import ratio as ratio_of

RECORD = RECORDS / "evolution.jsonl"
OURS, RANDOM = "tournament", "random"
COMPARED = (OURS, RANDOM, "asha")
SYSTEMS: dict[str, dict[str, Any]] = {
    OURS: {},
    RANDOM: {"generator": "random"},
    "asha": {"generator": "asha", "population": 48},
    "halving": {"generator": "halving"},
    "fixed rounds": {"adaptive_rounds": False},
    "no copies": {"replaced_fraction": 0.0},
    "crossover": {"crossover": 0.5},
}
"""Of each its section `evolution`, beside population and rounds."""

POPULATION, ROUNDS, PODS = 8, 9, 2
EPISODES = 100
START_AND_STOP_S = 120.0
TRADING = "StockTrading-v0"
MARKET = ("--tickers", "5", "--bars", "900", "--strength", "0", "--reversion", "0.2")
"""Of trading, another one for each seed: prices return to where they began, so a low one is worth
buying. The first 500 days train, 200 select, and the last 200 are the test."""
SPLIT = {
    "train_end": "2021-12-03",
    "validation_end": "2022-09-09",
    "turbulence_window": 60,
    "max_stock": 2000,
}


@dataclass(frozen=True)
class Task:
    """An environment, what an untrained policy has there, its goal, and a run's budget in device
    seconds."""

    environment: str
    untrained: float
    goal: float
    budget_s: float
    is_guard: bool = False


TASKS = (
    Task("Pendulum-v1", -1200.0, -200.0, 144.0, is_guard=True),
    Task("MountainCarContinuous-v0", -30.0, 90.0, 216.0),
    Task("LunarLander-v3", -180.0, 200.0, 720.0),
    Task("BipedalWalker-v3", -100.0, 200.0, 1440.0),
    Task("Hopper-v5", 15.0, 2500.0, 720.0),
    Task("HalfCheetah-v5", -200.0, 4000.0, 720.0),
    Task(TRADING, 0.0, 1.5, 216.0),
)


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    value        of its best policy, on fresh episodes; that of an untrained one where it found none
    seconds      of training until its best return was at the task's goal, as far as it knew; None
                 if it never was
    """

    environment: str
    system: str
    seed: int
    budget_s: float
    value: float
    seconds: float | None
    train_s: float
    cost_s: float
    env_steps: int
    agents: int

    @property
    def key(self) -> tuple[str, str, int, float]:
        return self.environment, self.system, self.seed, self.budget_s


def main() -> None:
    options = _options()
    tasks = [task for task in TASKS if task.environment.startswith(tuple(options.only))]
    if options.quick:
        tasks = [replace(TASKS[0], budget_s=12.0)]
    print(versions("torch", "gymnasium", "mujoco-core"))
    print(f"ended runs in {options.results}", flush=True)
    runs, lock = Runs(Run, options.results, RECORD), threading.Lock()

    def ended(task: Task, system: str, seed: int) -> None:
        run = _run(task, system, seed)
        with lock:
            runs.add([run])
            print(f"{run.environment}, {run.system}, seed {run.seed}: {run.value:.4g}", flush=True)

    with ThreadPoolExecutor(options.at_once) as pool:
        missing = [
            pool.submit(ended, task, system, seed)
            for seed in range(options.seeds)
            for task in tasks
            for system in options.systems
            if (task.environment, system, seed, task.budget_s) not in runs
        ]
        try:
            for each in missing:
                each.result()
        finally:
            pool.shutdown(cancel_futures=True)
    if options.write:
        runs.copy(RECORD)
        _draw({task: own for task, own in _found(TASKS, runs).items() if own})
    _report(_found(tasks, runs))


def _options() -> argparse.Namespace:
    parser = arguments(
        __doc__,
        "Pendulum, one seed, tournament and random, 12 s each",
        seeds=8,
        results=RESULTS / "evolution.jsonl",
    )
    parser.add_argument("--only", nargs="+", default=[""], help="environments that begin so")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=COMPARED)
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time, each on two cores")
    parser.add_argument(
        "--write", action="store_true", help=f"runs and picture into {RECORDS.relative_to(ROOT)}"
    )
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.systems, options.results = 1, (OURS, RANDOM), quick_results()
    return options


def _run(task: Task, system: str, seed: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="evolution-") as name:
        folder = Path(name)
        if task.environment == TRADING:
            _client(folder, "data", "make", f"{folder}/prices.csv", *MARKET, "--seed", str(seed))
        # the seconds are the processor's, and the machine may be busy
        limit_s = 4.0 * task.budget_s + START_AND_STOP_S
        measured = run_job(_job(task, system, seed), folder, limit_s)
        _, last = measured.need("job_finished")
        value = _value(task, folder, last["checkpoint"]) if last["checkpoint"] else task.untrained
    looks = [event for _, event in measured.events if event.get("event") == "progress"]
    # a job counts returns, not Sharpe ratios
    counts = task.environment != TRADING
    reached = [
        look["train_seconds"]
        for look in looks
        if counts and (look.get("best_return") or -math.inf) >= task.goal
    ]
    return Run(
        environment=task.environment,
        system=system,
        seed=seed,
        budget_s=task.budget_s,
        value=value,
        seconds=reached[0] if reached else None,
        train_s=last["train_seconds"],
        cost_s=last["cost_seconds"],
        env_steps=last["env_steps"],
        agents=last["agents"],
    )


def _round_s(task: Task) -> float:
    return task.budget_s / (POPULATION * ROUNDS)


def _job(task: Task, system: str, seed: int) -> dict[str, Any]:
    """The job file, as JSON, which is YAML too."""
    job: dict[str, Any] = {
        "name": "evolution",
        "environment": {"id": task.environment},
        "objective": {"max_cost": f"{task.budget_s:g}s", "statistic": "mean"},
        "search": {"algorithms": "auto"},
        "evolution": {"population": POPULATION, "round": {"seconds": _round_s(task)}}
        | SYSTEMS[system],
        "pod": {"count": {"min": 1, "max": PODS}, "members": POPULATION},
        "evaluation": {"episodes": 32},
        "seed": seed,
    }
    if task.environment == TRADING:
        job["environment"]["kwargs"], job["data"] = SPLIT, {"table": "./prices.csv"}
    return job


def _value(task: Task, folder: Path, checkpoint: str) -> float:
    if task.environment == TRADING:
        output = ("--json", "--output", f"{folder}/backtest")
        accounts = _client(folder, "backtest", checkpoint, *output)["accounts"]
        above = accounts["buy_and_hold"].get("policy_sharpe_above") or math.nan
        return float(above) if math.isfinite(above) else task.untrained  # it never bought
    found = _client(folder, "evaluate", checkpoint, "--episodes", str(EPISODES), "--json")
    return float(found["mean"])


def _client(folder: Path, *arguments: str) -> dict[str, Any]:
    measured = run_measured([*PODRACER, *arguments], folder / "client.log", timeout_s=600.0)
    return measured.events[-1][1] if measured.events else {}


Found = dict[Task, list[Run]]


def _found(tasks: Sequence[Task], runs: Iterable[Run]) -> Found:
    every = list(runs)
    return {
        task: [run for run in every if run.key[::3] == (task.environment, task.budget_s)]
        for task in tasks
    }


def _of(runs: Sequence[Run], system: str) -> dict[int, Run]:
    return {run.seed: run for run in runs if run.system == system}


def _gains(task: Task, runs: Sequence[Run], system: str, other: str) -> Array:
    """Normalized, of each seed that both have."""
    ours, theirs = _of(runs, system), _of(runs, other)
    pairs = [(ours[seed].value, theirs[seed].value) for seed in sorted(ours.keys() & theirs.keys())]
    return np.array([(own - its) / (task.goal - task.untrained) for own, its in pairs])


def _report(found: Found) -> None:
    header = ["environment", "system", "seeds", "value", "at the goal", "after (part of the run)"]
    print_table(
        "The best policy's value, of each seed: median (least – greatest)",
        [*header, "env steps", "agents"],
        [
            _row(task, system, runs)
            for task, runs in found.items()
            for system in dict.fromkeys(r.system for r in runs)
        ],
    )
    targets: dict[str, Target] = {}
    figures: dict[str, object] = {"runs": [asdict(run) for runs in found.values() for run in runs]}
    for other in dict.fromkeys(
        run.system for runs in found.values() for run in runs if run.system != OURS
    ):
        gains = {
            task: _gains(task, runs, OURS, other)
            for task, runs in found.items()
            if not task.is_guard
        }
        gains = {task: values for task, values in gains.items() if len(values)}
        if gains:
            figures[f"tournament over {other}"] = _compare(
                gains, other, targets if other == RANDOM else {}
            )
    for task, runs in found.items():
        if task.is_guard:
            targets[f"{task.environment}: seconds to the goal over random's"] = Target(
                _ratio(task, runs), 1.1, True
            )
    finish("evolution", figures, targets)


def _row(task: Task, system: str, runs: Sequence[Run]) -> list[object]:
    own = list(_of(runs, system).values())
    values = [run.value for run in own]
    parts = [1.0 if run.seconds is None else run.seconds / run.train_s for run in own]
    return [
        task.environment,
        system,
        len(own),
        spread(values),
        f"{sum(value >= task.goal for value in values)} of {len(own)}",
        "–" if task.environment == TRADING else spread(parts),
        spread([float(run.env_steps) for run in own]),
        int(statistics.median(run.agents for run in own)),
    ]


def _compare(gains: dict[Task, Array], other: str, targets: dict[str, Target]) -> dict[str, object]:
    """Gains, and the probability of improvement (Agarwal et al. 2021, arXiv:2108.13264); ties count
    half."""
    random = np.random.default_rng(0)
    wins, rows, below = [], [], 0
    for task, values in gains.items():
        wins.append(_won(resampled(values, random)))
        gain = estimate(values, statistic=lambda scores: scores.mean(-1))
        below += gain.high < 0
        between = f"{gain.low:+.3f} – {gain.high:+.3f}"
        rows.append(
            [task.environment, len(values), f"{gain.value:+.3f}", between, float(_won(values))]
        )
    low, high = interval(np.mean(wins, 0))
    probability = float(np.mean([_won(values) for values in gains.values()]))
    title = (
        f"Tournament less {other}, normalized; probability of improvement {probability:.2f} "
        f"({low:.2f} – {high:.2f})"
    )
    print_table(title, ["environment", "seeds", "mean", "95 %", "won"], rows)
    targets["probability of improvement over random, lower bound"] = Target(low, 0.5)
    targets["tasks whose interval is below zero"] = Target(float(below), 0.0, at_most=True)
    return {"probability": probability, "low": low, "high": high}


def _won(values: Array) -> Array:
    """The part of the last axis that is above 0."""
    return np.asarray(((values > 0) + 0.5 * (values == 0)).mean(-1))


def _ratio(task: Task, runs: Sequence[Run]) -> float | None:
    """Of the median seconds to the goal; a run that never got there has used all of its own."""
    medians = [
        statistics.median(run.train_s if run.seconds is None else run.seconds for run in own)
        if own
        else None
        for own in (_of(runs, system).values() for system in (OURS, RANDOM))
    ]
    return ratio_of(*medians)


def _draw(found: Found) -> None:
    """evolution.png: every run's normalized value, a point each."""
    systems = list(dict.fromkeys(run.system for own in found.values() for run in own))
    figure, (axes,) = panels(width=9, height=4.5)
    for number, system in enumerate(systems):
        shift = (number - (len(systems) - 1) / 2) * 0.8 / len(systems)
        for place, (task, own) in enumerate(found.items()):
            values = [
                (run.value - task.untrained) / (task.goal - task.untrained)
                for run in _of(own, system).values()
            ]
            at, color = place + shift, f"C{number}"
            label = None if place else system
            axes.plot([at] * len(values), values, "o", color=color, alpha=0.5, label=label)
            if values:
                axes.plot(at, statistics.fmean(values), "_", color=color, markersize=16, mew=3)
    axes.axhline(1.0, color="black", linestyle=":", linewidth=1)
    axes.set(
        ylabel="0: untrained, 1: the goal",
        title="The best policy for equal device seconds; a point is a seed",
    )
    axes.set_xticks(range(len(found)), [task.environment for task in found], rotation=20)
    axes.legend(fontsize=8)
    figure.savefig(RECORDS / "evolution.png")


if __name__ == "__main__":
    main()
