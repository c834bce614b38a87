"""Eight agents on CartPole-v1 beside Ray Tune's PBT with RLlib's PPO and AgileRL's evolutionary
training.

(a) wall seconds from the start of a process to the first greedy mean of 475 that 100 fresh episodes
    confirm, environment steps/s over the whole population from the first rollout to then, and the
    peak memory of all processes together (PSS, sampled five times a second). Ours is `podracer run
    benchmarks/jobs/population_cartpole.yaml`.
(b) steps/s that last: that job without a target, over two rounds of 10 s, looks and evaluations
    included; beside it AgileRL with its environments, horizon, minibatch, epochs and network. What
    the peers do in (a) lasts as it is, for their runs are longer.

Every run is a process of its own with the same cores and torch threads; the systems take turns,
seed after seed. The peers live in a virtual environment of their own, because some of what they
need excludes what we need: `--setup` makes it, in `--peers` or $PODRACER_PEERS or .venv-peers (2.5
GB). Without it ours is measured alone."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lab.arguments import PEERS, ROOT, arguments
from lab.peers import found_peers, run_script
from lab.processes import Measured, run_job
from lab.report import Target, finish, print_table, spread, versions
from lab.statistics import median, ratio
from peers.greedy_cartpole import PopulationOrder

JOB = ROOT / "benchmarks" / "jobs" / "population_cartpole.yaml"
LASTING_S = 20.0
"""Two rounds of our job."""


@dataclass(frozen=True)
class System:
    """What is measured. `package` is what the peers' environment has to have; empty for ours."""

    title: str
    package: str = ""
    recipe: str = ""
    quick: bool = True


SYSTEMS = {
    "ours": System("Podracer"),
    "agilerl_tutorial": System("AgileRL, its tutorial's settings", "agilerl", "tutorial"),
    "agilerl_short": System("AgileRL, shorter rollouts", "agilerl", "short", quick=False),
    "ray": System("Ray Tune PBT, RLlib PPO", "ray", quick=False),
}


@dataclass(frozen=True)
class Run:
    """One run to the target; `seconds` is None where it was not reached in time, what it did until
    then counts."""

    seconds: float | None
    steps_per_second: float | None
    env_steps: int
    memory_mb: float
    processes: int


def main() -> None:
    parser = arguments(
        __doc__,
        "one seed; of the peers AgileRL alone, for 20 s at most",
        seeds=5,
        limit=240.0,
        threads=os.cpu_count(),
        peers=PEERS,
    )
    parser.add_argument("--only", nargs="+", choices=sorted(SYSTEMS), help="only these systems")
    options = parser.parse_args()
    names = options.only or list(SYSTEMS)
    if options.quick:
        options.seeds, options.limit = 1, 20.0
        names = [name for name in names if SYSTEMS[name].quick or options.only]
    there = found_peers(options, "population", ("agilerl", "ray", "torch", "gymnasium"))
    names = [name for name in names if SYSTEMS[name].package in {"", *there}]
    print(versions("torch", "gymnasium"), "· measured:", ", ".join(names), flush=True)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    lasting_s = LASTING_S / 2 if options.quick else LASTING_S
    lasting = same = None
    with tempfile.TemporaryDirectory(prefix="population-") as scratch:
        folder = Path(scratch)
        for seed in range(options.seeds):
            for name in names:
                run = _run(name, seed, options, folder)
                runs[name].append(run)
                print(f"seed {seed}, {SYSTEMS[name].title}: {_text(run)}", flush=True)
        if "ours" in names:
            lasting = _ours(0, lasting_s, folder, is_lasting=True).steps_per_second
        if "agilerl" in there and not options.only:
            same = _same_settings(options, folder)
    _report(runs, lasting, same)


def _run(name: str, seed: int, options: argparse.Namespace, folder: Path) -> Run:
    if name == "ours":
        return _ours(seed, options.limit, folder)
    order = PopulationOrder(seed, options.threads, SYSTEMS[name].recipe)
    measured = _peer(SYSTEMS[name].package, order, options, folder, options.limit, "reached")
    begun, reached = measured.first("training"), measured.first("reached")
    newest = reached or measured.last("steps")
    if begun is None or newest is None:
        print(measured.tail[-500:])
        return Run(None, None, 0, *_memory(measured))
    steps = int(newest[1]["env_steps"])
    pace = steps / (newest[0] - begun[0])
    return Run(reached[0] if reached else None, pace, steps, *_memory(measured))


def _ours(seed: int, limit_s: float, folder: Path, is_lasting: bool = False) -> Run:
    """Our job to its target, or without one until the limit."""
    job = yaml.safe_load(JOB.read_text()) | {"seed": seed}
    limit = {"max_duration": f"{limit_s:g}s"}
    job["objective"] = limit if is_lasting else job["objective"] | limit
    own = Path(tempfile.mkdtemp(dir=folder))
    measured = run_job(job, own, limit_s + 60.0)
    at_s, last = measured.need("job_finished")
    is_there = last["seconds_to_target"] is not None
    pace = last["env_steps"] / last["train_seconds"] if last["train_seconds"] else None
    return Run(at_s if is_there else None, pace, last["env_steps"], *_memory(measured))


def _same_settings(options: argparse.Namespace, folder: Path) -> float | None:
    """AgileRL's steps/s with our settings."""
    seconds = 5.0 if options.quick else 30.0
    order = PopulationOrder(0, options.threads, "same", seconds)
    found = _peer("agilerl", order, options, folder, seconds + 120.0, "speed").first("speed")
    return None if found is None else float(found[1]["env_steps_per_second"])


def _peer(
    package: str,
    order: PopulationOrder,
    options: argparse.Namespace,
    folder: Path,
    timeout_s: float,
    until: str,
) -> Measured:
    script, log = f"peers/population_{package}.py", folder / f"{package}.log"
    place: dict[str, Any] = {"peers": options.peers, "as_ours": True}
    return run_script(script, order, log, timeout_s, until=(until,), **place)


def _memory(measured: Measured) -> tuple[float, int]:
    return measured.peak_bytes / 1e6, measured.processes


def _report(runs: dict[str, list[Run]], lasting: float | None, same: float | None) -> None:
    figures = ("steps_per_second", "env_steps", "memory_mb")
    header = ["system", "seconds", "got there", "environment steps/s", "environment steps"]
    print_table(
        "(a) from process start to a confirmed greedy 475, 8 agents: median (least – greatest)",
        [*header, "peak memory, MB", "processes"],
        [
            [
                SYSTEMS[name].title,
                spread(run.seconds for run in found),
                f"{sum(run.seconds is not None for run in found)} of {len(found)}",
                *(spread(getattr(run, figure) for run in found) for figure in figures),
                max(run.processes for run in found),
            ]
            for name, found in runs.items()
        ],
    )
    # Of the peer's recipes, the one that is best for it.
    agile = [found for name, found in runs.items() if name.startswith("agilerl")]
    fast = max(_medians(agile, "steps_per_second"), default=None)
    lean = min(_medians(agile, "memory_mb"), default=None)
    print_table(
        "(b) steps/s that last",
        ["system", "environment steps/s"],
        [
            ["Podracer, looks and evaluations included", spread([lasting])],
            ["AgileRL with its own settings, looks included: the faster of (a)", spread([fast])],
            [
                "AgileRL with our 256 environments, horizon, minibatch, epochs, network; no looks",
                spread([same]),
            ],
        ],
    )
    ours = runs.get("ours", [])
    seconds, memory = (median(getattr(run, of) for run in ours) for of in ("seconds", "memory_mb"))
    finish(
        "population_cartpole",
        {
            "runs": {name: [vars(run) for run in found] for name, found in runs.items()},
            "lasting_steps_per_second": lasting,
            "agilerl_same_settings_steps_per_second": same,
        },
        {
            "seconds_from_process_start": Target(seconds, 10.0, at_most=True),
            "steps_per_second_over_agilerl": Target(ratio(lasting, fast), 50.0),
            "memory_over_agilerl": Target(ratio(memory, lean), 1.5, at_most=True),
        },
    )


def _medians(systems: Sequence[Sequence[Run]], figure: str) -> list[float]:
    medians = [median(getattr(run, figure) for run in runs) for runs in systems]
    return [value for value in medians if value is not None]


def _text(run: Run) -> str:
    reached = "not reached" if run.seconds is None else f"{run.seconds:.1f} s"
    return f"{reached}, {run.memory_mb:,.0f} MB in {run.processes} processes"


if __name__ == "__main__":
    main()
