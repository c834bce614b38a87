"""What evolution gains: cost and time to a target of a tournament, of random search and of independent agents.

tournament     `search.algorithms: auto`, each algorithm's own search space, the default evolution
random         the same space, population, rounds and pods; no agent is copied or replaced (`generator: random`)
independent    for each algorithm of `auto`: as many agents with its defaults and different seeds, never replaced

Pendulum-v1 to -200, LunarLander-v3 to 200 (in processes), Hopper-v5 to 2,000: the mean of 32 greedy episodes, confirmed
with fresh seeds. Cost is in device seconds, evaluation included, as the job counts it. Every run is `podracer run` with
a time limit. A run that misses the target enters the medians with the cost that it used, which flatters methods that
fail. Runs are done one at a time, seed after seed. Each finished run is a line of `--results` and is not repeated.
`--write` puts the curves of all runs and a picture into docs/benchmarks.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured_process import run_measured
from report import Target, finish, print_table, spread, versions

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "benchmarks"
RESULTS = ROOT / "runs" / "benchmarks" / "evolution.jsonl"
START_AND_STOP_S = 60.0
COLUMNS = ("environment", "system", "seed", "seconds", "best_return")
INDEPENDENT = "independent "


@dataclass(frozen=True)
class Task:
    """An environment and its target; `limit_s` is how long a run may train."""

    environment: str
    target: float
    limit_s: float
    algorithms: tuple[str, ...]

    @property
    def systems(self) -> tuple[str, ...]:
        return ("tournament", "random", *(INDEPENDENT + name for name in self.algorithms))


TASKS = (
    Task("Pendulum-v1", -200.0, 180.0, ("ppo", "sac", "td3")),
    Task("LunarLander-v3", 200.0, 300.0, ("ppo", "d3qn", "discrete_sac")),
    Task("Hopper-v5", 2000.0, 360.0, ("ppo", "sac", "td3")),
)


@dataclass(frozen=True)
class Run:
    """A run that has ended. `curve` has (seconds of training, best return so far)."""

    environment: str
    system: str
    seed: int
    limit_s: float
    state: str
    reached: bool
    cost_s: float
    seconds: float
    wall_s: float
    env_steps: int
    agents: int
    best_return: float | None
    curve: tuple[tuple[float, float], ...]

    @property
    def key(self) -> tuple[str, str, int, float]:
        return self.environment, self.system, self.seed, self.limit_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Pendulum, one seed, tournament and random, 10 s each")
    parser.add_argument("--only", action="append", metavar="NAME", help="only environments whose names begin so")
    parser.add_argument("--systems", nargs="+", metavar="NAME", help="only systems whose names begin so")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=float, help="seconds that a run may train, in place of each task's own")
    parser.add_argument("--results", type=Path, default=RESULTS, help="ended runs, a JSON line each")
    parser.add_argument("--write", action="store_true", help=f"curves and picture into {DOCS.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.quick:
        options.only, options.systems = ["Pendulum"], options.systems or ["tournament", "random"]
        options.seeds, options.limit = 1, options.limit or 10.0
        options.results = Path(tempfile.mkdtemp(prefix="evolution-"), "quick.jsonl")
    plan = list(_plan(options))
    print(
        versions("torch", "gymnasium", "mujoco-core"),
        f"· {len(plan)} runs, ended ones in {options.results}",
        flush=True,
    )
    runs = _read(options.results)
    for task, system, seed in plan:
        if (task.environment, system, seed, task.limit_s) in runs:
            continue
        run = _run(task, system, seed)
        runs[run.key] = run
        _append(options.results, run)
        print(_line(run), flush=True)
    found = [runs[task.environment, system, seed, task.limit_s] for task, system, seed in plan]
    if options.write:
        _write_curves(found)
        _plot(found)
    _report(found)


def _plan(options: argparse.Namespace) -> Iterator[tuple[Task, str, int]]:
    """Seed after seed, so that an interrupted benchmark has something of everything."""
    for seed in range(options.seeds):
        for task in TASKS:
            if options.only and not task.environment.startswith(tuple(options.only)):
                continue
            limit_s = options.limit or task.limit_s
            limited = Task(task.environment, task.target, limit_s, task.algorithms)
            for system in limited.systems:
                if not options.systems or system.startswith(tuple(options.systems)):
                    yield limited, system, seed


def _run(task: Task, system: str, seed: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="evolution-") as folder:
        job = Path(folder, "job.json")
        job.write_text(json.dumps(_job(task, system, seed)))
        command = [sys.executable, "-m", "podracer_client", "run", str(job), "--json", "--dir", f"{folder}/runs"]
        measured = run_measured(
            command, Path(folder, "stderr.log"), timeout_s=task.limit_s + START_AND_STOP_S, until=("job_finished",)
        )
        finished = measured.first("job_finished")
        if finished is None:
            raise SystemExit(f"{task.environment}, {system}: no end\n{Path(folder, 'stderr.log').read_text()[-2000:]}")
    wall_s, last = finished
    looks = [event for _, event in measured.events if event.get("event") == "progress"]
    return Run(
        environment=task.environment,
        system=system,
        seed=seed,
        limit_s=task.limit_s,
        state=last["state"],
        reached=last["seconds_to_target"] is not None,
        cost_s=last["cost_seconds"],
        seconds=last["seconds_to_target"] or last["train_seconds"],
        wall_s=round(wall_s, 2),
        env_steps=last["env_steps"],
        agents=last["agents"],
        best_return=last["best_return"],
        curve=tuple(
            (look["train_seconds"], look["best_return"]) for look in looks if look.get("best_return") is not None
        ),
    )


def _job(task: Task, system: str, seed: int) -> dict[str, Any]:
    """The job file, as JSON, which is YAML too."""
    job: dict[str, Any] = {
        "name": "evolution",
        "environment": {"id": task.environment},
        "objective": {"target_return": task.target, "statistic": "mean", "max_duration": f"{task.limit_s:g}s"},
        "search": {"algorithms": "auto"},
        "evolution": {"population": 8, "round": {"seconds": 15}},
        "pod": {"count": {"min": 1, "max": os.cpu_count() or 1}},
        "evaluation": {"episodes": 32},
        "seed": seed,
    }
    if system == "random":
        job["evolution"]["generator"] = "random"
    if system.startswith(INDEPENDENT):
        from podracer_core.catalogue.algorithms import find_algorithm

        algorithm = system.removeprefix(INDEPENDENT)
        # A value that is not searched: everything else keeps its default then, too.
        fixed = {"gamma": find_algorithm(algorithm).defaults()["gamma"]}
        job["search"] = {"algorithms": [algorithm], "space": fixed}
        job["evolution"]["generator"] = "random"
    return job


def _read(results: Path) -> dict[tuple[str, str, int, float], Run]:
    """The runs that have ended; a last line that was not written to its end is none."""
    found = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        run = Run(**{**values, "curve": tuple((seconds, best) for seconds, best in values["curve"])})
        found[run.key] = run
    return found


def _append(results: Path, run: Run) -> None:
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps(vars(run)) + "\n")


def _groups(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.environment, run.system), []).append(run)
    return groups


def _report(runs: Sequence[Run]) -> None:
    groups = _groups(runs)
    print_table(
        "To the target, or to the limit where it was not reached: median (least – greatest) of the seeds",
        ["environment", "system", "reached", "device seconds", "seconds", "environment steps", "agents", "best return"],
        [
            [
                environment,
                system,
                f"{sum(run.reached for run in found)} of {len(found)}",
                spread([run.cost_s for run in found]),
                spread([run.seconds for run in found]),
                spread([float(run.env_steps) for run in found]),
                int(statistics.median(run.agents for run in found)),
                spread([run.best_return for run in found if run.best_return is not None] or [float("nan")]),
            ]
            for (environment, system), found in groups.items()
        ],
    )
    ratios = {}
    for environment in dict.fromkeys(run.environment for run in runs):
        ours, baseline = groups.get((environment, "tournament")), groups.get((environment, "random"))
        reached = ours and all(run.reached for run in ours)
        ratios[f"{environment}_cost_over_random"] = _ratio(ours, baseline) if reached else None
    finish(
        "evolution",
        {"runs": [{**vars(run), "curve": len(run.curve)} for run in runs]},
        {name: Target(ratio, 1.0, at_most=True) for name, ratio in ratios.items()},
    )


def _ratio(ours: Sequence[Run] | None, baseline: Sequence[Run] | None) -> float | None:
    """Of the median costs."""
    if not ours or not baseline:
        return None
    return statistics.median(run.cost_s for run in ours) / statistics.median(run.cost_s for run in baseline)


def _line(run: Run) -> str:
    outcome = "reached" if run.reached else f"not reached ({run.state})"
    return (
        f"{run.environment}, {run.system}, seed {run.seed}: {outcome} after {run.seconds:.1f} s, "
        f"{run.cost_s:.1f} device s, best {run.best_return}"
    )


def _write_curves(runs: Sequence[Run]) -> None:
    with (DOCS / "evolution.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for run in runs:
            writer.writerows((run.environment, run.system, run.seed, *point) for point in _changes(run.curve))


def _changes(curve: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The points at which the best return has changed, and the last."""
    for index, point in enumerate(curve):
        if index in (0, len(curve) - 1) or point[1] != curve[index - 1][1]:
            yield point


def _plot(runs: Sequence[Run]) -> None:
    """docs/benchmarks/evolution.png: the best return of every run, as far as is known, over seconds of training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = {task.environment: task for task in TASKS}
    environments = list(dict.fromkeys(run.environment for run in runs))
    figure, rows = pyplot.subplots(1, len(environments), figsize=(5.5 * len(environments), 4.2), dpi=120, squeeze=False)
    for axes, environment in zip(rows[0], environments, strict=True):
        of_this = {system: found for (where, system), found in _groups(runs).items() if where == environment}
        for number, (system, found) in enumerate(of_this.items()):
            for run in found:
                axes.step(
                    [seconds for seconds, _ in run.curve],
                    [best for _, best in run.curve],
                    where="post",
                    marker="o",
                    markevery=[-1] if run.curve else [],
                    markersize=4,
                    color=f"C{number}",
                    alpha=0.7,
                    label=system if run is found[0] else None,
                )
        axes.axhline(tasks[environment].target, color="black", linestyle=":", linewidth=1)
        axes.set(title=environment, xlabel="seconds of training", ylabel="best mean return, as far as is known")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(DOCS / "evolution.png")


if __name__ == "__main__":
    main()
