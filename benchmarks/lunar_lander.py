"""LunarLander-v3 to a mean of 200: `algorithms: auto` beside Stable-Baselines3's PPO with the
settings of its zoo.

Wall seconds from the start of a process to the first greedy mean of 200 that 100 fresh episodes
confirm. Ours is `podracer run` of a job that names the environment, the target and the seed, and
nothing else but the 100 episodes: it chooses algorithms and hyperparameters itself. The peer was
told its settings; it looks at 8 episodes now and then, for at most a fifth of its time. The systems
take turns, seed after seed, each in a process of its own with all cores."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from measured_process import Measured, run_measured
from report import Target, finish, print_table, spread, versions

PEER = Path(__file__).resolve().parent / "peers" / "lunar_lander_baselines.py"
TITLES = {"ours": "Podracer, auto", "sb3": "Stable-Baselines3, PPO of its zoo"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one seed, 20 s a system: whether it runs"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that a run may take")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.limit = 1, 20.0
    there = importlib.util.find_spec("stable_baselines3") is not None
    print(versions("torch", "gymnasium", *(["stable-baselines3"] if there else [])), flush=True)
    if not there:
        print("Stable-Baselines3 is not installed: ours is measured alone")
    systems = ["ours", "sb3"] if there else ["ours"]
    seconds: dict[str, list[float | None]] = {system: [] for system in systems}
    for seed in range(options.seeds):
        for system in systems:
            seconds[system].append(_run(system, seed, options.limit))
            print(f"seed {seed}, {TITLES[system]}: {_text(seconds[system][-1])}", flush=True)
    _report(seconds, options.limit)


def _run(system: str, seed: int, limit_s: float) -> float | None:
    """Seconds to the confirmed target; None where it was not reached."""
    with tempfile.TemporaryDirectory(prefix="lunar-lander-") as folder:
        command = (
            _our_command(seed, limit_s, Path(folder)) if system == "ours" else _peer_command(seed)
        )
        log = Path(folder, "stderr.log")
        measured = run_measured(
            command, log, timeout_s=limit_s + 30.0, until=("job_finished", "reached")
        )
        if not measured.events:
            raise SystemExit(f"{TITLES[system]} did not start\n{log.read_text()[-2000:]}")
    return _reached(measured)


def _our_command(seed: int, limit_s: float, folder: Path) -> list[str]:
    job = {
        "name": "lunar-lander",
        "environment": {"id": "LunarLander-v3"},
        "objective": {"target_return": 200, "max_duration": limit_s},
        "search": {"algorithms": "auto"},
        "evaluation": {"episodes": 100},
        "seed": seed,
    }
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    return [
        sys.executable,
        "-m",
        "podracer_client",
        "run",
        str(file),
        "--json",
        "--dir",
        str(folder / "runs"),
    ]


def _peer_command(seed: int) -> list[str]:
    return [sys.executable, str(PEER), "--seed", str(seed), "--threads", str(os.cpu_count())]


def _reached(measured: Measured) -> float | None:
    finished = measured.first("job_finished")
    if finished is not None:
        return finished[0] if finished[1]["seconds_to_target"] is not None else None
    reached = measured.first("reached")
    return reached[0] if reached else None


def _text(seconds: float | None) -> str:
    return "not reached" if seconds is None else f"{seconds:.0f} s"


def _report(seconds: dict[str, list[float | None]], limit_s: float) -> None:
    rows, medians = [], {}
    for system, found in seconds.items():
        counted = [limit_s if one is None else one for one in found]
        there = sum(one is not None for one in found)
        medians[system] = statistics.median(counted)
        rows.append([TITLES[system], spread(counted), f"{there} of {len(found)}"])
    print_table(
        "Seconds to a confirmed 200: median (least – greatest)",
        ["system", "seconds", "got there"],
        rows,
    )
    is_measured = "sb3" in medians and medians["ours"] < limit_s
    ratio = medians["ours"] / medians["sb3"] if is_measured else None
    finish(
        "lunar_lander",
        {"seconds": seconds},
        {"seconds, ours ÷ SB3's": Target(ratio, 1.0, at_most=True)},
    )


if __name__ == "__main__":
    main()
