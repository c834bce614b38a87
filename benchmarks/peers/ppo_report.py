"""What benchmarks/peers_ppo.py prints: a table for each comparison, and what was to be reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lab.report import Target, finish, print_table, spread
from lab.statistics import median, paired
from peers.ppo_plan import SYSTEMS, Run
from peers.ppo_recipes import TASKS

Grouped = dict[str, list[Run]]
"""By system."""

COMPARISONS = {
    "same": ("b", "the same settings"),
    "published": ("c", "ours as in (b), the peers' published settings"),
}


def line(run: Run) -> str:
    """A run in a few words."""
    about = f"{run.environment}, {run.system}, seed {run.seed}: "
    if run.part == "speed":
        return f"{about}{run.figures['steps_per_second']:,.0f} steps/s"
    outcome = "reached" if run.figures["seconds"] else "not reached"
    return (
        f"{about}{run.target:,.0f} {outcome} after {run.seconds:.1f} s, "
        f"{run.figures['env_steps']:,} steps"
    )


def report(runs: Sequence[Run]) -> None:
    """Tables, targets and the closing JSON line."""
    targets: dict[str, Target] = {}
    for environment in dict.fromkeys(run.environment for run in runs):
        task = TASKS[environment]
        of_this = [run for run in runs if run.environment == environment]
        speeds = _grouped([run for run in of_this if run.part == "speed"])
        for recipe, (letter, settings) in COMPARISONS.items():
            peers = {
                name: found
                for name, found in speeds.items()
                if not SYSTEMS[name].is_ours and SYSTEMS[name].recipe == recipe
            }
            if speeds:
                _print_speeds(f"({letter}) {environment}, {settings}", speeds, peers)
            for ours in (name for name in speeds if SYSTEMS[name].is_ours):
                cohort = ", cohort" if SYSTEMS[ours].members > 1 else ""
                known = [found for each in peers.values() if (found := _over(speeds[ours], each))]
                targets[f"{letter}_{environment}_steps_per_second{cohort}"] = Target(
                    min(known, default=None), task.least[recipe + cohort]
                )
        solved = [run for run in of_this if run.part == "target"]
        for target in sorted({run.target for run in solved}):
            of_target = _grouped([run for run in solved if run.target == target])
            _print_solved(f"(a) {environment}, to a confirmed {target:,.0f}", of_target)
            name = f"a_{environment}_seconds_to_{target:.0f}"
            targets[name] = Target(_over_best(of_target), task.most_seconds, at_most=True)
    finish("peers_ppo", {"runs": [vars(run) for run in runs]}, targets)


def _grouped(runs: Sequence[Run]) -> Grouped:
    return {
        name: found for name in SYSTEMS if (found := [run for run in runs if run.system == name])
    }


def _print_speeds(title: str, speeds: Grouped, peers: Grouped) -> None:
    ours = {name: runs for name, runs in speeds.items() if SYSTEMS[name].is_ours}
    rows: list[list[object]] = []
    for name, runs in (ours | peers).items():
        ratio = _over(ours.get("ours", []), runs) if name in peers else None
        memory = median(run.figures["memory_mb"] for run in runs)
        pace = spread(run.figures["steps_per_second"] for run in runs)
        rows.append([SYSTEMS[name].title, pace, "" if ratio is None else ratio, memory])
    print_table(
        f"{title}: environment steps/s, learning included, median (least – greatest)",
        ["system", "steps/s", "ours ÷ it", "peak memory, MB"],
        rows,
    )


def _print_solved(title: str, solved: Grouped) -> None:
    figures = ("training_seconds", "env_steps", "steps_per_second", "memory_mb")
    print_table(
        f"{title}, or to the limit: median (least – greatest)",
        [
            "system",
            "seconds from process start",
            "got there",
            "training, s",
            "environment steps",
            "steps/s",
            "MB",
        ],
        [
            [
                SYSTEMS[name].title,
                spread(run.seconds for run in runs),
                f"{sum(run.figures['seconds'] is not None for run in runs)} of {len(runs)}",
                *(spread(run.figures[figure] for run in runs) for figure in figures),
            ]
            for name, runs in solved.items()
        ],
    )


def _over_best(solved: Grouped) -> float | None:
    """Seconds of ours over those of the best peer; None where a seed of ours has not got there."""
    medians = {
        name: statistics.median(run.seconds for run in runs) for name, runs in solved.items()
    }
    ours = medians.pop("ours", None)
    if ours is None or not medians or any(not run.figures["seconds"] for run in solved["ours"]):
        return None
    return ours / min(medians.values())


def _over(ours: Sequence[Run], theirs: Sequence[Run]) -> float | None:
    """Median of the ratios of steps/s, each of two runs of one seed, which follow one another."""
    own, others = (
        {run.seed: run.figures["steps_per_second"] for run in runs} for runs in (ours, theirs)
    )
    both = [seed for seed in own if seed in others]
    return paired([own[s] for s in both], [others[s] for s in both]) if both else None
