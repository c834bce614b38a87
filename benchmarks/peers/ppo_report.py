"""What benchmarks/peers_ppo.py prints: a table for each comparison, and what was to be reached."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from peers.ppo_plan import ALONE, SYSTEMS, Run
from report import Target, finish, print_table, spread

# Ours over the best of the peers: (b) steps/s with the same settings, (c) beside published ones,
# (a) seconds.
LEAST_RATIOS = {
    "same": ("b", {"Ant-v5": 3.0, "HalfCheetah-v5": 2.0}),
    "published": ("c", {"Ant-v5": 5.0, "HalfCheetah-v5": 6.0}),
}
MOST_SECONDS = 0.2


def line(run: Run) -> str:
    """A run in a few words."""
    about = f"{run.environment}, {run.system}, seed {run.seed}: "
    if run.part == "alone":
        return (
            about
            + ", ".join(f"{name} {value:,.0f}" for name, value in run.figures.items())
            + " steps/s"
        )
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
        of_this = [run for run in runs if run.environment == environment]
        _print_alone(environment, [run for run in of_this if run.part == "alone"])
        speeds = _grouped([run for run in of_this if run.part == "speed"])
        for recipe, (letter, least) in LEAST_RATIOS.items():
            ratio = _print_speeds(environment, recipe, f"({letter})", speeds)
            if speeds:
                targets[f"{letter}_{environment}_steps_per_second"] = Target(
                    ratio, least[environment]
                )
        solved = [run for run in of_this if run.part == "target"]
        for target in sorted({run.target for run in solved}):
            ratio = _print_solved(
                environment, target, _grouped([run for run in solved if run.target == target])
            )
            name = f"a_{environment}_seconds_to_{target:.0f}"
            targets[name] = Target(ratio, MOST_SECONDS, at_most=True)
    finish("peers_ppo", {"runs": [vars(run) for run in runs]}, targets)


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return {
        name: found for name in SYSTEMS if (found := [run for run in runs if run.system == name])
    }


def _print_alone(environment: str, runs: Sequence[Run]) -> None:
    if not runs:
        return
    rows: list[list[object]] = []
    for name, title in ALONE.items():
        if found := [run.figures[name] for run in runs if name in run.figures]:
            ratios = [
                run.figures["ours"] / run.figures[name] for run in runs if name in run.figures
            ]
            rows.append([title, spread(found), "" if name == "ours" else statistics.median(ratios)])
    print_table(
        f"{environment}: 64 environments alone, random actions, steps/s: median (least – greatest)",
        ["system", "steps/s", "ours ÷ it"],
        rows,
    )


def _print_speeds(
    environment: str, recipe: str, letter: str, speeds: dict[str, list[Run]]
) -> float | None:
    """Returns ours over the best of the peers."""
    ours = speeds.get("ours", [])
    peers = {
        name: runs
        for name, runs in speeds.items()
        if name != "ours" and SYSTEMS[name].recipe == recipe
    }
    if not peers:
        return None
    ratios = {name: _paired(ours, runs) for name, runs in peers.items()}
    shown = {"ours": ours, **peers} if ours else peers
    settings = (
        "the same settings" if recipe == "same" else "ours as in (b), the peers' published settings"
    )
    print_table(
        f"{letter} {environment}, {settings}: environment steps/s, learning included, median "
        "(least – greatest)",
        ["system", "steps/s", "ours ÷ it", "peak memory, MB"],
        [
            [
                SYSTEMS[name].title,
                spread([run.figures["steps_per_second"] for run in runs]),
                _text(ratios.get(name)),
                float(statistics.median(run.figures["memory_mb"] for run in runs)),
            ]
            for name, runs in shown.items()
        ],
    )
    return min((ratio for ratio in ratios.values() if ratio is not None), default=None)


def _print_solved(environment: str, target: float, solved: dict[str, list[Run]]) -> float | None:
    """Returns ours over the best of the peers; None where a seed of ours has not got there."""
    print_table(
        f"(a) {environment}, to a confirmed {target:,.0f}, or to the limit: median (least – "
        "greatest)",
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
                spread([run.seconds for run in runs]),
                f"{sum(run.figures['seconds'] is not None for run in runs)} of {len(runs)}",
                _known(runs, lambda run: run.figures["training_seconds"]),
                _known(runs, lambda run: float(run.figures["env_steps"])),
                _known(runs, lambda run: run.figures["steps_per_second"]),
                _known(runs, lambda run: run.figures["memory_mb"]),
            ]
            for name, runs in solved.items()
        ],
    )
    ours = solved.get("ours", [])
    peers = [
        statistics.median(run.seconds for run in runs)
        for name, runs in solved.items()
        if name != "ours"
    ]
    if not ours or not peers or any(run.figures["seconds"] is None for run in ours):
        return None
    return statistics.median(run.seconds for run in ours) / min(peers)


def _paired(ours: Sequence[Run], theirs: Sequence[Run]) -> float | None:
    """Median of the ratios of steps/s, each of two runs of one seed, which follow one another."""
    by_seed = {run.seed: run.figures["steps_per_second"] for run in theirs}
    ratios = [
        run.figures["steps_per_second"] / by_seed[run.seed] for run in ours if run.seed in by_seed
    ]
    return statistics.median(ratios) if ratios else None


def _known(runs: Sequence[Run], value: Callable[[Run], float | None]) -> str:
    known = [found for run in runs if (found := value(run)) is not None]
    return spread(known) if known else "–"


def _text(ratio: float | None) -> object:
    return "" if ratio is None else ratio
