"""What selection gains on recorded curves: random search, halving, ASHA and the tournament's rule,
replayed.

The curves are those of benchmarks/recorded_curves.py. In each of thousands of replays the
configurations begin in another order, the defaults first, and a method sees other episodes of each
look. All methods begin with the same agents and may spend the same CPU seconds: those of halving
with η = 3 over three rungs. What is chosen is an agent at its last look; its worth is the mean of
the episodes that no method has seen. Worth is normalized: 0 without training, 1 for the best end of
all curves, which is the mean of the last three looks. Regret is what is missing to 1.

Intervals are those of a bootstrap over configurations, the defaults excepted: each agent was
trained once, with one seed. The first third of the curves is replayed by itself, too. Looks cost
nothing here. Copies and perturbations cannot be replayed, so of the tournament only the halving is
shown. Where an oracle gains less than 10 % on the better random search, no selection is claimed to
pay. Where a task's curves are not all there, those of the algorithms that are complete are
replayed."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from recorded.curves import read_curves
from recorded.methods import METHODS, PROPOSED, RANDOM, cost, oracle
from recorded.replay import Array, Recording, interval, spearman
from recorded.tasks import LOOKS, TASKS, configurations
from report import Target, finish, print_table, versions

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "benchmarks" / "recorded_curves.jsonl"
RESULTS = ROOT / "runs" / "benchmarks" / "recorded_curves.jsonl"
STARTS = (8, 24, 48)
CUTS = (LOOKS // 3, LOOKS)
PARTS = (0.1, 0.25, 0.5)
WORTHWHILE = 0.1
RESAMPLES, PARALLEL = 200, 8
ORACLE = "oracle"


@dataclass(frozen=True)
class Outcome:
    """Of each bootstrap sample, [R]: the mean worth of each method's choices, and rank correlations
    by part."""

    worth: dict[str, Array]
    correlations: dict[float, Array]

    def estimate(self, method: str) -> float:
        return float(self.worth[method].mean())

    @property
    def random(self) -> str:
        """The better random search."""
        return max(RANDOM, key=self.estimate)

    @property
    def oracle_gain(self) -> float:
        """In parts of what random search reaches."""
        return self.estimate(ORACLE) / self.estimate(self.random) - 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="200 replays in place of 2,000")
    parser.add_argument(
        "--replays", type=int, default=10, help=f"of each of {RESAMPLES} bootstrap samples"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="curves, beside those of docs/benchmarks"
    )
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    replays = 1 if options.quick else options.replays
    curves = read_curves(RECORD, options.results)
    print(versions("numpy"), f"· {RESAMPLES * replays} replays of each method")
    figures, targets = dict[str, object](), dict[str, Target]()
    with ProcessPoolExecutor(options.processes) as pool:
        for task in TASKS:
            listed = configurations(task)
            keys = [(task.environment, each.number, each.settings(task)) for each in listed]
            found = [curves[key] for key in keys if key in curves]
            name = task.environment
            if len(found) < len(keys):
                counts, wanted = (
                    Counter(each.algorithm for each in group) for group in (found, listed)
                )
                whole = [
                    algorithm
                    for algorithm in task.algorithms
                    if counts[algorithm] == wanted[algorithm]
                ]
                found = [curve for curve in found if curve.algorithm in whole]
                name = (
                    f"{name} without "
                    f"{' and '.join(name for name in task.algorithms if name not in whole)}"
                )
            for looks in CUTS if found else ():
                title = f"{name}, {looks / LOOKS * task.seconds:.2g} s"
                _task(title, Recording.of(found, looks), replays, pool, figures, targets)
    finish("replayed_selection", figures, targets)


def _task(
    name: str,
    recording: Recording,
    replays: int,
    pool: ProcessPoolExecutor,
    figures: dict[str, object],
    targets: dict[str, Target],
) -> None:
    for starts in (count for count in STARTS if count <= recording.count):
        seeds = [range(part, RESAMPLES, PARALLEL) for part in range(PARALLEL)]
        parts = list(pool.map(partial(replay, recording, starts, replays), seeds))
        outcome = Outcome(
            {
                method: np.concatenate([part.worth[method] for part in parts])
                for method in parts[0].worth
            },
            {part: np.concatenate([each.correlations[part] for each in parts]) for part in PARTS},
        )
        if starts == STARTS[0]:
            _print_correlations(name, outcome)
        _print_methods(name, starts, cost(starts, recording.looks) / recording.looks, outcome)
        key = f"{name}, {starts} agents"
        figures[key] = {
            "regret": {method: 1.0 - outcome.estimate(method) for method in outcome.worth},
            "oracle_gain": outcome.oracle_gain,
            "spearman": {
                str(part): float(values.mean()) for part, values in outcome.correlations.items()
            },
        }
        if outcome.oracle_gain >= WORTHWHILE:
            gain = float((outcome.worth[PROPOSED] - outcome.worth[outcome.random]).mean())
            targets[f"{key}: gain on random search"] = Target(gain, 0.0)


def replay(recording: Recording, starts: int, replays: int, seeds: Sequence[int]) -> Outcome:
    """The outcomes of the bootstrap samples with these seeds."""
    worth: dict[str, list[float]] = {method: [] for method in (*METHODS, ORACLE)}
    correlations: dict[float, list[float]] = {part: [] for part in PARTS}
    for seed in seeds:
        random = np.random.default_rng([seed, starts])
        others = np.arange(recording.defaults, recording.count)
        draws = [recording.drawn(random, random.choice(others, len(others))) for _ in range(1)]
        resampled = draws[0].order[recording.defaults :]
        draws += [recording.drawn(random, resampled) for _ in range(replays - 1)]
        for method, choose in {**METHODS, ORACLE: oracle}.items():
            chosen = [draw.worth[choose(draw, starts, cost(starts, draw.looks))] for draw in draws]
            worth[method].append(float(np.mean(chosen)))
        for part, values in correlations.items():
            values.append(
                float(
                    np.mean(
                        [
                            spearman(draw.few[:, round(part * draw.looks)], draw.ends)
                            for draw in draws
                        ]
                    )
                )
            )
    return Outcome(
        {method: np.array(values) for method, values in worth.items()},
        {part: np.array(values) for part, values in correlations.items()},
    )


def _print_correlations(name: str, outcome: Outcome) -> None:
    print_table(
        f"{name}: rank correlation of a look with the end",
        ["part of the seconds", "Spearman", "95 %"],
        [
            [f"{100 * part:.0f} %", float(found.mean()), _text(found)]
            for part, found in outcome.correlations.items()
        ],
    )


def _print_methods(name: str, starts: int, full_curves: float, outcome: Outcome) -> None:
    random = outcome.worth[outcome.random]
    rows = [
        [method, float(1.0 - worth.mean()), _text(1.0 - worth), f"{float((worth - random).mean()):+.3f}",
         _text(worth - random)]
        for method, worth in outcome.worth.items()
    ]  # fmt: skip
    verdict = "" if outcome.oracle_gain >= WORTHWHILE else ", so selection is not claimed"
    print_table(
        f"{name}, {starts} agents begin, {full_curves:.1f} curves' seconds; "
        f"an oracle gains {100 * outcome.oracle_gain:.0f} %{verdict}",
        ["method", "normalized regret", "95 %", "gain on random search", "95 %"],
        rows,
    )


def _text(values: Array) -> str:
    low, high = interval(values)
    return f"{low:.3f} … {high:.3f}"


if __name__ == "__main__":
    main()
