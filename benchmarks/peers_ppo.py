"""PPO beside Stable-Baselines3, SBX (JAX) and RLlib (1 and 2 env runners) on a CPU: Ant-v5 and
HalfCheetah-v5; CartPole-v1 and LunarLander-v3 beside Stable-Baselines3 alone.

Three comparisons that are never mixed:

(a) wall seconds from the start of a process to a return that 100 fresh greedy episodes confirm.
    Ours is `podracer run`: imports, services and evaluation included. On CartPole it runs
    examples/cartpole.yaml, on LunarLander `algorithms: auto`. A peer's is the better of its
    published settings and of ours; it is looked at on our environments, which are faster than its
    own, for at most a fifth of its time, as ours is.
(b) environment steps/s, learning included, with the same number of environments, horizon,
    minibatches, epochs and networks; ours is the training session that a fused pod's learner runs.
(c) the steps/s of ours in (b) beside the peers with their published settings; the samples that
    these need are in (a).

Every run is a process of its own, with the same number of threads; the systems take turns, seed
after seed. Each run that has ended is a line of `--results`, and is not run again. What each
system's environments do alone, benchmarks/environments.py measures. Stable-Baselines3 and SBX are
among the benchmarks' requirements. RLlib lives in a virtual environment of its own: `--setup` makes
it, in `--peers` or $PODRACER_PEERS or .venv-peers (1.9 GB); without it it is left out."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence

from lab.arguments import PEERS, RESULTS, ROOT, arguments, quick_results
from lab.peers import found_peers
from lab.report import versions
from lab.runs import Runs
from peers.ppo_measure import measure
from peers.ppo_plan import SYSTEMS, Entry, Part, Run, Setting, packages, systems_of
from peers.ppo_recipes import TASKS
from peers.ppo_report import line, report

PARTS: tuple[Part, ...] = ("speed", "target")


def main() -> None:
    options = _options()
    libraries = ["podracer"]
    if "ray" in found_peers(options, "ppo", ("ray", "gymnasium", "mujoco", "torch")):
        libraries.append("rllib")
    names = {"stable-baselines3": "sb3", "sbx-rl": "sbx"}
    libraries += [library for package, library in names.items() if package in packages()]
    print(versions("torch", "mujoco-core", "gymnasium", *packages()))
    print(f"{options.threads} threads; left out, not installed: ", end="")
    print(", ".join({system.library for system in SYSTEMS.values()} - {*libraries}) or "nothing")
    setting = Setting(options.seconds, options.limit, options.threads, options.peers)
    plan, runs = list(_plan(options, libraries)), Runs(Run, options.results)
    print(f"{len(plan)} entries, ended runs in {options.results}", flush=True)
    with tempfile.TemporaryDirectory(prefix="peers-ppo-") as scratch:
        os.chdir(scratch)  # logs, also those that MuJoCo writes where it stands
        for entry in plan:
            if not all(run.key in runs for run in entry.runs(setting)):
                found = measure(entry, setting)
                runs.add(found)
                print(*map(line, found), sep="\n", flush=True)
        os.chdir(ROOT)
    wanted = [runs.get(run.key) for entry in plan for run in entry.runs(setting)]
    report([run for run in wanted if run is not None])


def _options() -> argparse.Namespace:
    parser = arguments(
        __doc__,
        "HalfCheetah, one seed, of the peers Stable-Baselines3",
        seeds=5,
        seconds=20.0,
        limit=None,
        threads=os.cpu_count(),
        results=RESULTS / "peers_ppo.jsonl",
        peers=PEERS,
    )
    parser.add_argument("--target-seeds", type=int, default=3, help="of the seconds to a target")
    parser.add_argument("--only", nargs="+", default=[""], help="environments that begin so")
    parser.add_argument("--systems", nargs="+", default=[""], help=f"of: {', '.join(SYSTEMS)}")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    if options.quick:
        options.only, options.seeds, options.target_seeds = ["HalfCheetah"], 1, 1
        options.seconds, options.limit, options.results = 2.0, 10.0, quick_results()
        options.systems = ["ours", "sb3"]
    options.results, options.peers = options.results.absolute(), options.peers.absolute()
    return options


def _plan(options: argparse.Namespace, libraries: Sequence[str]) -> Iterator[Entry]:
    """Part after part, the long one last; in each seed after seed, so that an interrupted one has
    something of all."""
    tasks = [task for name, task in TASKS.items() if name.startswith(tuple(options.only))]
    for part in (part for part in PARTS if part in options.parts):
        for seed in range(options.target_seeds if part == "target" else options.seeds):
            for task in tasks if part == "target" else [task for task in tasks if task.least]:
                for name in systems_of(task, libraries):
                    # A quick run shows only that our job runs to its end: peers need minutes.
                    is_short = part == "speed" or name == "ours" or not options.quick
                    solves = part == "speed" or SYSTEMS[name].solves
                    if name.startswith(tuple(options.systems)) and solves and is_short:
                        yield Entry(part, task, name, seed)


if __name__ == "__main__":
    main()
