"""PPO on Ant-v5 and HalfCheetah-v5 beside Stable-Baselines3, SBX (JAX) and RLlib (1 and 2 env
runners), on a CPU.

Three comparisons that are never mixed, after what each system's environments do alone:

(a) wall seconds from the start of a process to a return that 100 fresh greedy episodes confirm.
Ours is `podracer run`,
    imports, services and evaluation included. A peer's is the better of its published settings and of ours; it is
    looked at on our environments, which are faster than its own, for at most a fifth of its time, as ours is.
(b) environment steps/s, learning included, with the same 64 environments, horizon 64, minibatches
of 1,024, 10 epochs
    and networks (64-64 tanh, twice); ours is the training session that a fused pod's learner runs.
(c) the steps/s of ours in (b) beside the peers with their published settings; the samples that
these need are in (a).

Every run is a process of its own, with the same number of threads; the systems take turns, seed
after seed. Each run that has ended is a line of `--results`, and is not run again.
Stable-Baselines3 and SBX are among the benchmarks' requirements. RLlib lives in a virtual
environment of its own: `--setup` makes it, in `--peers` or $PODRACER_PEERS or .venv-peers (1.9 GB);
without it it is left out."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from peers.ppo_measure import measure, step_environments
from peers.ppo_plan import SYSTEMS, Entry, Part, Setting, append_run, packages, read_runs
from peers.ppo_recipes import TASKS
from peers.ppo_report import line, report
from peers.virtual_environment import PLACE, installed, set_up
from report import versions

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "benchmarks" / "peers" / "requirements-ppo.txt"
RESULTS = ROOT / "runs" / "benchmarks" / "peers_ppo.jsonl"
PARTS: tuple[Part, ...] = ("alone", "speed", "target")


def main() -> None:
    options = _options()
    if options.alone:
        found = step_environments(options.alone, options.seconds, options.threads)
        print(json.dumps({"event": "alone", "steps_per_second": found}))
        return
    if options.setup:
        set_up(options.peers, REQUIREMENTS)
    there = installed(options.peers, ("ray", "gymnasium", "mujoco", "torch"))
    names, missing = _systems(options, there)
    print(
        versions("torch", "mujoco-core", "gymnasium", *packages()), f"· {options.threads} threads"
    )
    print(
        f"in {options.peers}:",
        ", ".join(f"{name} {found}" for name, found in there.items()) or "nothing",
    )
    if missing:
        print(f"left out, not installed: {', '.join(missing)} (--setup installs RLlib)")
    setting = Setting(options.seconds, options.limit, options.threads, options.peers)
    plan, runs = list(_plan(options, names)), read_runs(options.results)
    print(f"{len(plan)} entries, ended runs in {options.results}", flush=True)
    with tempfile.TemporaryDirectory(prefix="peers-ppo-") as scratch:
        os.chdir(scratch)  # logs, also those that MuJoCo writes where it stands
        for entry in plan:
            if all(run.key in runs for run in entry.blank_runs(setting)):
                continue
            for run in measure(entry, setting):
                runs[run.key] = run
                append_run(options.results, run)
                print(line(run), flush=True)
        os.chdir(ROOT)
    report([runs[run.key] for entry in plan for run in entry.blank_runs(setting)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="HalfCheetah, one seed, of the peers Stable-Baselines3"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="only environments whose names begin so"
    )
    parser.add_argument(
        "--systems",
        nargs="+",
        metavar="NAME",
        help=f"only those that begin so: {', '.join(SYSTEMS)}",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="speed: (b) and (c); target: (a)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="of the steps/s")
    parser.add_argument("--target-seeds", type=int, default=3, help="of the seconds to a target")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a measurement of steps/s")
    parser.add_argument(
        "--limit", type=float, help="seconds of a run to the targets, in place of each task's own"
    )
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="of torch, MuJoCo and JAX"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="ended runs, a JSON line each"
    )
    parser.add_argument(
        "--setup", action="store_true", help="make the virtual environment of RLlib first"
    )
    parser.add_argument("--peers", type=Path, default=PLACE)
    parser.add_argument("--alone", choices=sorted(TASKS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.only, options.seeds, options.target_seeds = ["HalfCheetah"], 1, 1
        options.seconds, options.limit = 2.0, 10.0
        options.results = Path(tempfile.mkdtemp(prefix="peers-ppo-"), "quick.jsonl")
    options.results, options.peers = options.results.absolute(), options.peers.absolute()
    return options


def _systems(options: argparse.Namespace, there: dict[str, str]) -> tuple[list[str], list[str]]:
    """The names of those to be measured, and the libraries of theirs that are not installed."""
    libraries = {"podracer": True, "rllib": "ray" in there}
    libraries |= {"sb3": "stable-baselines3" in packages(), "sbx": "sbx-rl" in packages()}
    if options.systems:
        wanted = [name for name in SYSTEMS if name.startswith(tuple(options.systems))]
    else:
        wanted = [name for name, system in SYSTEMS.items() if system.quick or not options.quick]
    missing = {SYSTEMS[name].library for name in wanted if not libraries[SYSTEMS[name].library]}
    return [name for name in wanted if libraries[SYSTEMS[name].library]], sorted(missing)


def _plan(options: argparse.Namespace, names: Sequence[str]) -> Iterator[Entry]:
    """Part after part, the long one last; in each seed after seed, so that an interrupted one has
    something of all."""
    tasks = [
        task
        for name, task in TASKS.items()
        if not options.only or name.startswith(tuple(options.only))
    ]
    # A quick run shows only that our job runs to its end: the peers need minutes to a target.
    solving = [
        name for name in names if SYSTEMS[name].solves and (name == "ours" or not options.quick)
    ]
    of_part = {"alone": ["environments"], "speed": names, "target": solving}
    for part in PARTS:
        for seed in range(options.target_seeds if part == "target" else options.seeds):
            for task in tasks if part in options.parts else ():
                for name in of_part[part]:
                    yield Entry(part, task, name, seed)


if __name__ == "__main__":
    main()
