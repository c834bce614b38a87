"""Every generator against random search at equal budget, on synthetic agents: what selection and
search are worth.

The leaderboard is the real one (its proposals, submissions, challenges and database); pods, time
and training are simulated, see synthetic/. A job has 192 agent-rounds for a population of 8 on two
pods of 4 members, so random search trains each of its 8 agents for 24 rounds. Its value is the true
return, without noise, of the agent that the leaderboard puts first when the budget has been used.
Pairs have the same seed: the same landscape, first agents and luck. A seed is won by the greater
value; ties are left out of the sign test. Intervals of a median are those of its order statistics,
at least 95 %.

The landscapes are drawn anew for each seed. `slow starters` is made to deceive generators that
judge early."""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab.arguments import arguments
from lab.report import Target, finish, print_table, spread, versions
from synthetic.landscapes import LANDSCAPES, Landscape
from synthetic.pool import Outcome, Setting, run_job

from podracer_leaderboard.server import MIGRATIONS
from podracer_platform.database import open_database

BASELINE = "random"
GENERATORS = ("tournament", "generational", "elites", "search", "halving", "asha")
ADAPTIVE = "tournament, adaptive"
GAINS = ("won / lost", "median gain", "95 %", "sign test")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Comparison:
    """Paired values of a generator and of random search."""

    differences: tuple[float, ...]

    @property
    def wins(self) -> int:
        return sum(difference > 0 for difference in self.differences)

    @property
    def losses(self) -> int:
        return sum(difference < 0 for difference in self.differences)

    @property
    def share(self) -> float:
        """Of the pairs that are no tie, the part that is won."""
        return self.wins / max(1, self.wins + self.losses)

    @property
    def probability(self) -> float:
        """Sign test: how likely so many wins or more are where both are equally good."""
        count = self.wins + self.losses
        return sum(math.comb(count, wins) for wins in range(self.wins, count + 1)) / 2**count

    @property
    def median(self) -> float:
        return statistics.median(self.differences)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the median, at least 95 %: between two order statistics that a binomial gives."""
        ordered, count = sorted(self.differences), len(self.differences)
        left_out, below = 0, 0.0
        while (below := below + math.comb(count, left_out) / 2**count) <= 0.025:
            left_out += 1
        first = max(left_out - 1, 0)
        return ordered[first], ordered[count - 1 - first]


def main() -> None:
    parser = arguments(__doc__, "three seeds and half of the budget: under a minute", seeds=20)
    parser.add_argument(
        "--first-seed", type=int, default=0, help="for seeds that nothing was tuned on"
    )
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    seeds, rounds = (3, 96) if options.quick else (options.seeds, 192)
    print(versions("optuna", "SQLAlchemy"), f"· {seeds} seeds, {rounds} agent-rounds a job")
    settings = [
        _setting(landscape, contender, seed, rounds)
        for landscape in LANDSCAPES
        for contender in (BASELINE, *GENERATORS, ADAPTIVE)
        for seed in range(options.first_seed, options.first_seed + seeds)
    ]
    count, found = 10 * options.processes, []
    with ProcessPoolExecutor(options.processes) as pool:
        for number, part in enumerate(
            pool.map(_run, [settings[start::count] for start in range(count)]), start=1
        ):
            found += part
            print(f"{number} of {count} parts are done", flush=True)
    outcomes: dict[tuple[str, str], dict[int, Outcome]] = defaultdict(dict)
    leases, seconds = 0, 0.0
    for setting, outcome, took_s in found:
        outcomes[setting.landscape.name, _contender(setting)][setting.seed] = outcome
        leases, seconds = leases + outcome.leases, seconds + took_s
    _report(outcomes, 60.0 * leases / seconds, rounds, options.quick)


def _report(
    outcomes: dict[tuple[str, str], dict[int, Outcome]],
    leases_per_minute: float,
    rounds: int,
    is_quick: bool,
) -> None:
    figures: dict[str, object] = {"leases_per_minute": leases_per_minute, "agent_rounds": rounds}
    for landscape in LANDSCAPES:
        rows = []
        for contender in (BASELINE, *GENERATORS, ADAPTIVE):
            runs = outcomes[landscape.name, contender]
            values = [run.value for run in runs.values()]
            comparison = _compare(outcomes, [landscape], contender)
            figures[f"{landscape.name}, {contender}"] = _summary(comparison, values)
            against = _against(comparison) if contender != BASELINE else ["", "", "", ""]
            agents = statistics.mean(run.agents for run in runs.values())
            rows.append([contender, spread(values), *against, agents])
        title = f"{landscape.name}: {landscape.meaning}"
        print_table(title, ["", "return, median (range)", *GAINS, "agents"], rows)
    pooled = {
        contender: _compare(outcomes, LANDSCAPES, contender)
        for contender in (*GENERATORS, ADAPTIVE)
    }
    print_table(
        "all landscapes together, against random search",
        ["", *GAINS],
        [[contender, *_against(comparison)] for contender, comparison in pooled.items()],
    )
    print(f"\n{leases_per_minute:,.0f} leases a minute and process")
    targets = {
        f"share of seeds won, {name}": Target(pooled[name].share, 0.5) for name in GENERATORS
    }
    if not is_quick:
        targets |= {
            f"sign test, {name}": Target(pooled[name].probability, 0.05, at_most=True)
            for name in GENERATORS
        }
    finish("generators", figures, targets)


def _against(comparison: Comparison) -> list[object]:
    (low, high), won = comparison.interval, f"{comparison.wins} / {comparison.losses}"
    gain, chance = f"{comparison.median:+.0f}", f"p = {comparison.probability:.2g}"
    return [won, gain, f"{low:+.0f} … {high:+.0f}", chance]


def _summary(comparison: Comparison, values: Sequence[float]) -> dict[str, object]:
    names = ("wins", "losses", "interval", "probability")
    found = {name: getattr(comparison, name) for name in names}
    return {"median": statistics.median(values), "median_gain": comparison.median, **found}


def _compare(
    outcomes: dict[tuple[str, str], dict[int, Outcome]],
    landscapes: Sequence[type[Landscape]],
    contender: str,
) -> Comparison:
    return Comparison(
        tuple(
            run.value - outcomes[landscape.name, BASELINE][seed].value
            for landscape in landscapes
            for seed, run in outcomes[landscape.name, contender].items()
        )
    )


def _setting(landscape: type[Landscape], contender: str, seed: int, rounds: int) -> Setting:
    generator = contender.removesuffix(", adaptive")
    evolution: dict[str, object] = (
        {"adaptive_rounds": True} if contender in (ADAPTIVE, "halving") else {}
    )
    return Setting(landscape, generator, seed, rounds, evolution=evolution)


def _contender(setting: Setting) -> str:
    return (
        ADAPTIVE if setting.evolution and setting.generator == "tournament" else setting.generator
    )


def _run(settings: Sequence[Setting]) -> list[tuple[Setting, Outcome, float]]:
    return asyncio.run(_run_all(settings))


async def _run_all(settings: Sequence[Setting]) -> list[tuple[Setting, Outcome, float]]:
    """One job after the other on one database, in memory where the machine has a folder for
    that."""
    found = []
    with tempfile.TemporaryDirectory(
        dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    ) as folder:
        async with open_database(f"sqlite:///{folder}/leaderboard.sqlite", MIGRATIONS) as database:
            for setting in settings:
                start = time.perf_counter()
                outcome = await run_job(database, setting)
                found.append((setting, outcome, time.perf_counter() - start))
    return found


if __name__ == "__main__":
    main()
