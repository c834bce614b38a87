"""Eight agents on CartPole-v1 beside Ray Tune's PBT with RLlib's PPO and AgileRL's evolutionary
training.

(a) wall seconds from the start of a process to the first greedy mean of 475 that 100 fresh episodes
confirm,
    environment steps/s over the whole population from the first rollout to then, and the peak memory of all processes
    together (PSS, sampled five times a second). Ours is `podracer run benchmarks/jobs/population_cartpole.yaml`.
(b) steps/s that last: that job without a target, over two rounds of 10 s, looks and evaluations
included; beside it
    AgileRL with its environments, horizon, minibatch, epochs and network. What the peers do in (a) lasts as it is, for
    their runs are longer; ours is over after a second or two, much of it the first look and the confirmation.

Every run is a process of its own with the same cores and torch threads; the systems take turns,
seed after seed. The peers live in a virtual environment of their own, because some of what they
need excludes what we need: `--setup` makes it, in `--peers` or $PODRACER_PEERS or .venv-peers (2.5
GB). Without it ours is measured alone."""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured_process import Measured, run_measured
from peers.virtual_environment import PLACE, installed, python_of, set_up
from report import Target, finish, print_table, spread, versions

from podracer_core.native_settings import NATIVE_SETTINGS

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "benchmarks" / "jobs" / "population_cartpole.yaml"
PEERS = ROOT / "benchmarks" / "peers"
REQUIREMENTS = PEERS / "requirements-population.txt"
POPULATION = 8
LASTING_S = 20.0
"""Two rounds of our job."""


@dataclass(frozen=True)
class System:
    """What is measured. `package` is what the peers' environment has to have; empty for ours."""

    title: str
    package: str = ""
    arguments: tuple[str, ...] = ()
    timeout_s: float = 240.0
    quick: bool = True


SYSTEMS = {
    "ours": System("Podracer"),
    "agilerl_tutorial": System(
        "AgileRL, its tutorial's settings", "agilerl", ("--recipe", "tutorial")
    ),
    "agilerl_short": System(
        "AgileRL, shorter rollouts", "agilerl", ("--recipe", "short"), quick=False
    ),
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one seed; of the peers AgileRL alone, for 20 s at most",
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="torch threads of every peer"
    )
    parser.add_argument(
        "--only", action="append", choices=sorted(SYSTEMS), help="only these systems"
    )
    parser.add_argument(
        "--setup", action="store_true", help="make the peers' virtual environment first"
    )
    parser.add_argument("--peers", type=Path, default=PLACE)
    options = parser.parse_args()
    python = python_of(options.peers)
    if options.setup:
        set_up(options.peers, REQUIREMENTS)
    there = installed(options.peers, ("agilerl", "ray", "torch", "gymnasium"))
    names = [
        name
        for name in options.only or SYSTEMS
        if SYSTEMS[name].quick or not options.quick or options.only
    ]
    missing = sorted({SYSTEMS[name].package for name in names} - {"", *there})
    names = [name for name in names if SYSTEMS[name].package in {"", *there}]
    print(
        versions("torch", "gymnasium"),
        "·",
        ", ".join(f"{name} {found}" for name, found in there.items()),
    )
    if missing:
        print(
            f"left out, not installed in {options.peers}: {', '.join(missing)} (--setup installs "
            "them)"
        )

    runs: dict[str, list[Run]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="population-") as scratch:
        for seed in range(1 if options.quick else options.seeds):
            for name in names:
                run = _run(name, python, options, seed, Path(scratch))
                runs[name].append(run)
                print(f"seed {seed}, {SYSTEMS[name].title}: {_text(run)}", flush=True)
        lasting = _lasting(options, Path(scratch)) if "ours" in names else None
        same = (
            _same_settings(python, options, Path(scratch))
            if "agilerl" in there and not options.only
            else None
        )
    _report(runs, lasting, same)


def _run(name: str, python: Path, options: argparse.Namespace, seed: int, scratch: Path) -> Run:
    system, log = SYSTEMS[name], scratch / f"{name}.log"
    timeout_s = 20.0 if options.quick else system.timeout_s
    if name == "ours":
        return _ours(run_measured(_our_command(seed, scratch), log, timeout_s=timeout_s))
    # Eight trials at once have a process each: a thread for each is all that two cores can bear.
    threads = 1 if name == "ray" else options.threads
    arguments = [
        *system.arguments,
        "--population",
        str(POPULATION),
        "--threads",
        str(threads),
        "--seed",
        str(seed),
    ]
    command = [str(python), str(PEERS / f"population_{system.package}.py"), *arguments]
    environment = NATIVE_SETTINGS | {"OMP_NUM_THREADS": str(threads)}
    return _peer(
        run_measured(command, log, environment=environment, timeout_s=timeout_s, until=("reached",))
    )


def _our_command(seed: int, scratch: Path, lasting_s: float | None = None) -> list[str]:
    name = f"cartpole-{seed}" if lasting_s is None else "lasting"
    text = JOB.read_text().replace("seed: 0", f"seed: {seed}")
    if lasting_s is not None:
        text = re.sub("objective: .*", f"objective: {{max_duration: {lasting_s:g}s}}", text)
    job, folder = scratch / f"{name}.yaml", scratch / f"runs-{name}"
    job.write_text(text)
    return [
        sys.executable,
        "-m",
        "podracer_client",
        "run",
        str(job),
        "--json",
        "--dir",
        str(folder),
    ]


def _ours(measured: Measured) -> Run:
    found = measured.first("job_finished")
    if found is None or found[1]["state"] != "SUCCEEDED":
        return Run(None, None, 0, *_memory(measured))
    seconds, last = found
    return Run(
        seconds, last["env_steps"] / last["train_seconds"], last["env_steps"], *_memory(measured)
    )


def _lasting(options: argparse.Namespace, scratch: Path) -> float | None:
    """Our steps/s where no target ends it."""
    seconds = LASTING_S / 2 if options.quick else LASTING_S
    command = _our_command(0, scratch, seconds)
    return _ours(run_measured(command, scratch / "lasting.log", timeout_s=120.0)).steps_per_second


def _peer(measured: Measured) -> Run:
    begun, reached = measured.first("training"), measured.first("reached")
    newest = reached or measured.last("steps")
    if begun is None or newest is None:
        return Run(None, None, 0, *_memory(measured))
    steps = int(newest[1]["env_steps"])
    return Run(
        reached[0] if reached else None, steps / (newest[0] - begun[0]), steps, *_memory(measured)
    )


def _memory(measured: Measured) -> tuple[float, int]:
    return measured.peak_bytes / 1e6, measured.processes


def _same_settings(python: Path, options: argparse.Namespace, scratch: Path) -> float | None:
    """AgileRL's steps/s with our settings."""
    seconds = 5.0 if options.quick else 30.0
    arguments = ["--recipe", "same", "--speed", str(seconds), "--threads", str(options.threads)]
    command = [str(python), str(PEERS / "population_agilerl.py"), *arguments]
    found = run_measured(
        command,
        scratch / "same.log",
        environment=NATIVE_SETTINGS,
        timeout_s=seconds + 120.0,
        until=("speed",),
    ).first("speed")
    return None if found is None else float(found[1]["env_steps_per_second"])


def _report(runs: dict[str, list[Run]], lasting: float | None, same: float | None) -> None:
    print_table(
        "(a) from process start to a confirmed greedy 475, 8 agents: median (least – greatest)",
        [
            "system",
            "seconds",
            "got there",
            "environment steps/s",
            "environment steps",
            "peak memory, MB",
            "processes",
        ],
        [
            [
                SYSTEMS[name].title,
                _spread([run.seconds for run in found]),
                f"{sum(run.seconds is not None for run in found)} of {len(found)}",
                _spread([run.steps_per_second for run in found]),
                _spread([float(run.env_steps) for run in found if run.env_steps]),
                _spread([run.memory_mb for run in found]),
                max(run.processes for run in found),
            ]
            for name, found in runs.items()
        ],
    )
    agile = [
        _median(found, "steps_per_second")
        for name, found in runs.items()
        if name.startswith("agilerl")
    ]
    print_table(
        "(b) steps/s that last",
        ["system", "environment steps/s"],
        [
            ["Podracer, looks and evaluations included", _spread([lasting])],
            [
                "AgileRL with its own settings, looks included: the faster of (a)",
                _spread([_best(agile, max)]),
            ],
            [
                "AgileRL with our 256 environments, horizon, minibatch, epochs, network; no looks",
                _spread([same]),
            ],
        ],
    )
    ours = runs.get("ours", [])
    lean = [
        _median(found, "memory_mb") for name, found in runs.items() if name.startswith("agilerl")
    ]
    finish(
        "population_cartpole",
        {
            "runs": {name: [vars(run) for run in found] for name, found in runs.items()},
            "lasting_steps_per_second": lasting,
            "agilerl_same_settings_steps_per_second": same,
        },
        {
            "seconds_from_process_start": Target(_median(ours, "seconds"), 10.0, at_most=True),
            "steps_per_second_over_agilerl": Target(_ratio(lasting, _best(agile, max)), 50.0),
            "memory_over_agilerl": Target(
                _ratio(_median(ours, "memory_mb"), _best(lean, min)), 1.5, at_most=True
            ),
        },
    )


def _median(runs: Sequence[Run], field: str) -> float | None:
    values = [value for run in runs if (value := getattr(run, field)) is not None]
    return statistics.median(values) if values else None


def _best(values: Sequence[float | None], best: Any) -> float | None:
    """Of the peer's recipes, the one that is best for it."""
    known = [value for value in values if value is not None]
    return best(known) if known else None


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs is not None else None


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return spread(known) if known else "–"


def _text(run: Run) -> str:
    reached = "not reached" if run.seconds is None else f"{run.seconds:.1f} s"
    return f"{reached}, {run.memory_mb:,.0f} MB in {run.processes} processes"


if __name__ == "__main__":
    main()
