"""How an entry of the plan of benchmarks/peers_ppo.py is measured: the processes that it starts,
and what they tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from lab.arguments import ROOT
from lab.peers import run_script
from lab.processes import Measured, run_job
from peers.ppo_plan import SYSTEMS, Entry, Figures, Run, Setting
from peers.ppo_recipes import hyperparameters, recipe_of

START_AND_STOP_S = 120.0
# at most, before steps/s are measured: start, compiling, a few rollouts and updates
WARM_UP_S = 120.0
SCRIPTS = {
    "podracer": "peers/ppo_podracer.py",
    "rllib": "peers/ppo_rllib.py",
    "sb3": "peers/ppo_baselines.py",
    "sbx": "peers/ppo_baselines.py",
}


def measure(entry: Entry, setting: Setting) -> list[Run]:
    """Do it, with logs and what else is left in the working directory. Raises SystemExit where it
    fails."""
    if entry.part == "speed":
        found = [_speed(entry, setting)]
    else:
        found = _our_jobs(entry, setting) if entry.system == "ours" else _solve(entry, setting)
    return entry.runs(setting, found)


def _speed(entry: Entry, setting: Setting) -> Figures:
    timeout_s = WARM_UP_S + 3 * setting.speed_s
    measured = _script(entry, setting, setting.speed_s, timeout_s, ("speed",))
    _, told = measured.need("speed")
    return {"steps_per_second": told["env_steps_per_second"], **measured.memory}


def _solve(entry: Entry, setting: Setting) -> list[Figures]:
    """A peer, one process for all targets of the task."""
    limit_s = setting.limit_s or entry.task.limit_s
    measured = _script(entry, setting, 0.0, limit_s)
    reached = {
        event["target"]: (at, event) for at, event in measured.events if event["event"] == "reached"
    }
    begun_s, _ = measured.need("training")
    if not measured.timed_out and len(reached) < len(entry.task.targets):
        raise SystemExit(f"{entry.system} has ended before its time\n{measured.tail}")
    found = []
    for target in entry.task.targets:
        is_reached = target in reached
        at_s, last = reached.get(target) or measured.last("steps") or (limit_s, {"env_steps": 0})
        times = (at_s, at_s - begun_s) if is_reached else (None, None)
        found.append(
            _solved(*times, last["env_steps"], last["env_steps"] / (at_s - begun_s), measured)
        )
    return found


def _our_jobs(entry: Entry, setting: Setting) -> list[Figures]:
    """Ours, a job for each target: a job ends when it is reached."""
    limit_s, found = setting.limit_s or entry.task.limit_s, []
    for target in entry.task.targets:
        folder = Path(f"runs-{entry.task.environment}-{target:g}-{entry.seed}").absolute()
        folder.mkdir()
        measured = run_job(our_job(entry, target, limit_s), folder, limit_s + START_AND_STOP_S)
        at_s, last = measured.need("job_finished")
        trained_s = last["seconds_to_target"]
        seconds = None if trained_s is None else at_s
        found.append(
            _solved(seconds, trained_s, last["env_steps"], last["env_steps_per_second"], measured)
        )
    return found


def _solved(
    seconds: float | None,
    training_seconds: float | None,
    env_steps: int,
    pace: float,
    measured: Measured,
) -> Figures:
    return {
        "seconds": seconds,
        "training_seconds": training_seconds,
        "env_steps": env_steps,
        "steps_per_second": pace,
        **measured.memory,
    }


def our_job(entry: Entry, target: float, limit_s: float) -> dict[str, Any]:
    """The job file: the task's own, or one agent with the recipe, trained by one fused pod in one
    round until 100 episodes have a mean of the target."""
    if entry.task.job:
        job: dict[str, Any] = yaml.safe_load((ROOT / entry.task.job).read_text())
        job["objective"]["max_duration"] = f"{limit_s:g}s"
        return job | {"seed": entry.seed}
    recipe = recipe_of("same", entry.task.environment)
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


def _script(
    entry: Entry, setting: Setting, speed_s: float, timeout_s: float, until: Sequence[str] = ()
) -> Measured:
    library = SYSTEMS[entry.system].library
    return run_script(
        SCRIPTS[library],
        entry.order(setting, speed_s),
        Path(f"{entry.system}.log"),
        timeout_s,
        until=until,
        peers=setting.peers if library == "rllib" else None,
        threads=setting.threads,
    )
