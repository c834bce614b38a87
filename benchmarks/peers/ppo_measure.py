"""How an entry of the plan of benchmarks/peers_ppo.py is measured: the processes that it starts,
and what they tell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from measured_process import Measured, run_measured
from peers.ppo_plan import ALONE, SYSTEMS, Entry, Figures, Run, Setting
from peers.ppo_recipes import BEST, TASKS, hyperparameters
from peers.virtual_environment import python_of

from podracer_core.native_settings import NATIVE_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
START_AND_STOP_S = 120.0
# at most, before steps/s are measured: start, compiling, a few rollouts and updates
WARM_UP_S = 120.0
ALONE_SHARE = 0.1  # of the seconds of such a measurement, for each system's environments


def measure(entry: Entry, setting: Setting) -> list[Run]:
    """Do it, with logs and what else is left in the working directory. Raises SystemExit where it
    fails."""
    if entry.part == "alone":
        found = [_alone(entry, setting)]
    elif entry.part == "speed":
        found = [_speed(entry, setting)]
    else:
        found = _our_jobs(entry, setting) if entry.system == "ours" else _solve(entry, setting)
    blank = entry.blank_runs(setting)
    return [replace(run, figures=figures) for run, figures in zip(blank, found, strict=True)]


def _alone(entry: Entry, setting: Setting) -> Figures:
    seconds = str(setting.speed_s * ALONE_SHARE)
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "peers_ppo.py"),
        "--alone",
        entry.task.environment,
    ]
    measured = run_measured(
        [*command, "--seconds", seconds, "--threads", str(setting.threads)],
        Path("alone.log"),
        environment=NATIVE_SETTINGS,
        timeout_s=600.0,
        until=("alone",),
    )
    return dict(_event(measured, "alone", "alone.log")[1]["steps_per_second"])


def step_environments(environment: str, seconds: float, threads: int) -> dict[str, float]:
    """One window of each system's 64 environments, in this process, with random actions."""
    from peers.environment_systems import Row
    from peers.environment_systems import measure as measure_row

    arguments = TASKS[environment].arguments
    peers = tuple(name for name in ALONE if name != "ours")
    cores = os.cpu_count() or 1
    row = Row(
        environment,
        "MuJoCo",
        environment,
        64,
        peers,
        64,
        cores=cores,
        threads=threads,
        peer_kwargs=arguments,
    )
    return {name: windows[0] for name, windows in measure_row(row, 1, seconds).items()}


def _speed(entry: Entry, setting: Setting) -> Figures:
    timeout_s = WARM_UP_S + 3 * setting.speed_s
    measured = _worker(entry, setting, setting.speed_s, timeout_s, ("speed",))
    _, told = _event(measured, "speed", f"{entry.system}.log")
    return {"steps_per_second": told["env_steps_per_second"], **_memory(measured)}


def _solve(entry: Entry, setting: Setting) -> list[Figures]:
    """A peer, one process for all targets of the task."""
    limit_s = setting.limit_s or entry.task.limit_s
    measured = _worker(entry, setting, 0.0, limit_s)
    reached = {
        event["target"]: (at, event) for at, event in measured.events if event["event"] == "reached"
    }
    begun, log = measured.first("training"), f"{entry.system}.log"
    if begun is None or (not measured.timed_out and len(reached) < len(entry.task.targets)):
        raise SystemExit(f"{entry.system} has ended before its time\n{_tail(log)}")
    found = []
    for target in entry.task.targets:
        is_reached = target in reached
        at_s, last = reached.get(target) or measured.last("steps") or (limit_s, {"env_steps": 0})
        trained_s = at_s - begun[0]
        found.append(
            {
                "seconds": at_s if is_reached else None,
                "training_seconds": trained_s if is_reached else None,
                "env_steps": last["env_steps"],
                "steps_per_second": last["env_steps"] / trained_s,
                **_memory(measured),
            }
        )
    return found


def _our_jobs(entry: Entry, setting: Setting) -> list[Figures]:
    """Ours, a job for each target: a job ends when it is reached."""
    limit_s, found = setting.limit_s or entry.task.limit_s, []
    for target in entry.task.targets:
        # JSON is YAML, too
        Path("job.json").write_text(json.dumps(our_job(entry, target, limit_s)))
        folder = f"runs-{entry.task.environment}-{target:g}-{entry.seed}"
        measured = run_measured(
            [sys.executable, "-m", "podracer_client", "run", "job.json", "--json", "--dir", folder],
            Path("ours.log"),
            timeout_s=limit_s + START_AND_STOP_S,
            until=("job_finished",),
        )
        at_s, last = _event(measured, "job_finished", "ours.log")
        found.append(
            {
                "seconds": at_s if last["seconds_to_target"] is not None else None,
                "training_seconds": last["seconds_to_target"],
                "env_steps": last["env_steps"],
                "steps_per_second": last["env_steps_per_second"],
                **_memory(measured),
            }
        )
    return found


def our_job(entry: Entry, target: float, limit_s: float) -> dict[str, Any]:
    """The job file: one agent, trained by one fused pod in one round until 100 episodes have a mean
    of the target."""
    recipe = BEST[entry.task.environment]
    space = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in hyperparameters(recipe).items()
    }
    return {
        "name": "peers-ppo",
        "environment": {"id": entry.task.environment},
        "objective": {
            "target_return": target,
            "statistic": "mean",
            "max_duration": f"{limit_s:g}s",
        },
        "search": {"algorithms": ["ppo"], "space": space},
        "evolution": {"population": 1, "round": {"seconds": limit_s}},
        "pod": {"count": 1, "layout": "fused", "members": 1, "envs_per_member": recipe.num_envs},
        "evaluation": {"episodes": 100},
        "seed": entry.seed,
    }


def _worker(
    entry: Entry, setting: Setting, speed_s: float, timeout_s: float, until: Sequence[str] = ()
) -> Measured:
    system = SYSTEMS[entry.system]
    script = {"podracer": "ppo_podracer.py", "rllib": "ppo_rllib.py"}.get(
        system.library, "ppo_baselines.py"
    )
    python = python_of(setting.peers) if system.library == "rllib" else Path(sys.executable)
    # RLlib's environment has not our package, whose environments its policies are looked at on.
    variables = {
        "PJRT_NPROC": str(setting.threads),
        "PYTHONPATH": str(ROOT / "libs" / "podracer_core"),
    }
    return run_measured(
        [
            str(python),
            str(ROOT / "benchmarks" / "peers" / script),
            json.dumps(asdict(entry.order(setting, speed_s))),
        ],
        Path(f"{entry.system}.log"),
        environment=variables | (NATIVE_SETTINGS if system.library == "podracer" else {}),
        timeout_s=timeout_s,
        until=until,
    )


def _event(measured: Measured, name: str, log: str) -> tuple[float, dict[str, Any]]:
    found = measured.first(name)
    if found is None:
        raise SystemExit(f"no {name} came{' in time' if measured.timed_out else ''}\n{_tail(log)}")
    return found


def _tail(log: str) -> str:
    return Path(log).read_text(errors="replace")[-3000:]


def _memory(measured: Measured) -> Figures:
    return {"memory_mb": measured.peak_bytes / 1e6, "processes": measured.processes}
