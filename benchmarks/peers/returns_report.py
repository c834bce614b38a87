"""Tables, curves and picture of benchmarks/returns.py."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from lab.plots import curve as draw_curve
from lab.plots import panels
from lab.report import Target, finish, number_text, print_table
from lab.statistics import Estimate, estimate
from peers.returns_training import LAST_LOOKS, TITLES, Run

Found = Mapping[str, Mapping[str, Sequence[Run]]]  # task -> system -> runs

THRESHOLDS = {"HalfCheetah-v5": 2000.0}
PUBLISHED = {
    "HalfCheetah-v5": (5819.1, 5783.9),
    "Hopper-v5": (2410.4, 2609.3),
    "Walker2d-v5": (3478.8, 3588.5),
    "Ant-v5": (1327.2, 3258.4),
    "Humanoid-v5": (None, 787.1),
}
"""After a million steps on version 3 of the tasks: rl-baselines3-zoo, benchmark.md (one run, its
mean over 150 episodes and more), and Tianshou, examples/mujoco/README.md (10 seeds, the largest
mean over seeds that any evaluation had)."""


def report(found: Found, steps: int) -> None:
    """All of it, closing line included."""
    scores = {
        (task, system): estimate([run.score for run in runs])
        for task, systems in found.items()
        for system, runs in systems.items()
        if runs
    }
    _print_scores(found, scores, steps)
    for task, target in THRESHOLDS.items():
        if task in found:
            _print_threshold(task, target, found[task])
    compared = [task for task in found if all((task, system) in scores for system in TITLES)]
    _print_curves(found, compared)
    ratio = _over_sb3(found, compared)
    below = sum(scores[task, "ours"].high < scores[task, "sb3"].low for task in compared)
    is_whole = len(compared) == len(PUBLISHED)
    each = {
        task: {system: [run.score for run in runs] for system, runs in systems.items()}
        for task, systems in found.items()
    }
    estimates = {f"{task} {system}": asdict(own) for (task, system), own in scores.items()}
    figures = {"steps": steps, "scores": each, "estimates": estimates}
    finish(
        "returns",
        figures | {"over_sb3": ratio and asdict(ratio)},
        {"tasks_with_an_interval_below_sb3": Target(below if is_whole else None, 0, at_most=True)},
    )


def _print_scores(found: Found, scores: Mapping[tuple[str, str], Estimate], steps: int) -> None:
    rows = []
    for task, systems in found.items():
        zoo, tianshou = PUBLISHED[task]
        for system, runs in systems.items():
            if runs:
                seeds = ", ".join(f"{run.score:,.0f}" for run in runs)
                score = scores[task, system]
                rows.append([task, TITLES[system], score, len(runs), seeds, zoo or "–", tianshou])
    print_table(
        f"Greedy return after {steps:,} steps, mean of the last {LAST_LOOKS} looks of a seed: "
        "interquartile mean over seeds (bootstrap interval of 95 %)",
        ["task", "system", "return", "seeds", "each", "rl-zoo, one run", "Tianshou, maximum"],
        rows,
    )


def _print_threshold(task: str, target: float, systems: Mapping[str, Sequence[Run]]) -> None:
    rows = []
    for system, runs in systems.items():
        there = sorted(first for run in runs if (first := run.first_at(target)) is not None)
        shown = ", ".join(f"{first:,}" for first in there)
        # Of all seeds, those that never got there being the slowest.
        middle = len(runs) // 2
        median = number_text(there[middle]) if runs and middle < len(there) else "–"
        rows.append([TITLES[system], f"{len(there)} of {len(runs)}", median, shown])
    print_table(
        f"{task}: steps at the first look of {target:,.0f}",
        ["system", "got there", "median", "each"],
        rows,
    )


def _print_curves(found: Found, tasks: Sequence[str]) -> None:
    rows = []
    for task in tasks:
        ours, theirs = (dict(curve(found[task][system])) for system in TITLES)
        both = [(ours[taken], theirs[taken]) for taken in ours if taken in theirs]
        below = sum(own.high < other.low for own, other in both)
        above = sum(own.low > other.high for own, other in both)
        rows.append([task, len(both), below, len(both) - below - above, above])
    if rows:
        print_table(
            "Intervals of ours beside theirs, look by look",
            ["task", "looks", "below", "overlap", "above"],
            rows,
        )


def _over_sb3(found: Found, tasks: Sequence[str]) -> Estimate | None:
    """All tasks together, in units of Stable-Baselines3's mean score on each; None where that is no
    unit."""
    scale = {task: statistics.fmean(run.score for run in found[task]["sb3"]) for task in tasks}
    if not tasks or min(scale.values()) <= 0.0:
        return None
    ours, theirs = (
        estimate(*([run.score / scale[task] for run in found[task][system]] for task in tasks))
        for system in TITLES
    )
    text = "{0.value:.2f} ({0.low:.2f} – {0.high:.2f})".format
    print_table(
        "All tasks, in units of Stable-Baselines3's mean on each: interquartile mean, stratified "
        "bootstrap of 95 %",
        ["system", "tasks", "return"],
        [[TITLES["ours"], len(tasks), text(ours)], [TITLES["sb3"], len(tasks), text(theirs)]],
    )
    return ours


def curve(runs: Sequence[Run]) -> list[tuple[int, Estimate]]:
    """Steps and the estimate over seeds, of the looks that all runs have."""
    values = [dict(run.looks) for run in runs]
    shared = set.intersection(*map(set, values)) if values else set()
    return [(taken, estimate([of[taken] for of in values])) for taken in sorted(shared)]


def plot(found: Found, picture: Path) -> None:
    """The curves of each task."""
    figure, axes = panels(len(found))
    for (task, systems), panel in zip(found.items(), axes, strict=True):
        for system, runs in systems.items():
            looks = curve(runs)
            at = [taken for taken, _ in looks]
            names = ("value", "low", "high")
            values = [[getattr(own, name) for _, own in looks] for name in names]
            draw_curve(panel, at, *values, f"{TITLES[system]}, {len(runs)} seeds")
        panel.set(title=task, xlabel="environment steps")
    axes[0].set_ylabel("greedy return, interquartile mean")
    figure.savefig(picture)
