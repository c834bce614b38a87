"""Whether a job keeps its budget, and what of it goes into training: BipedalWalker-v3 for 60 s, 8
agents of PPO.

Each run is `podracer run` of one job with `max_duration` and nothing else set. `--before TREE`:
each seed is run with the code of that working tree, too, just before; such pairs are compared, for
a busy machine gives both of them less. Seconds of the job are its active time, device seconds those
of the processors of its pod, as the job counts them."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from measured_process import run_measured
from report import Target, finish, print_table, spread, versions

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("libs/*", "services/*")
START_AND_STOP_S = 240.0


@dataclass(frozen=True)
class Run:
    """A job that has ended. `share` is evaluation's of the device seconds; None where the job does
    not say."""

    seconds: float
    env_steps: int
    cost_s: float
    share: float | None
    best_return: float | None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one run of 20 s")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of the job")
    parser.add_argument("--before", type=Path, help="a working tree to compare with")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.limit = 1, 20.0
    print(versions("torch", "gymnasium", "box2d"), flush=True)
    before: list[Run] = []
    now: list[Run] = []
    for seed in range(options.seeds):
        if options.before:
            before.append(_run(options.before.resolve(), options.limit, seed))
        now.append(_run(ROOT, options.limit, seed))
        print(f"seed {seed}: {[*before[seed:], now[-1]]}", flush=True)
    _report(before, now, options.limit)


def _run(tree: Path, limit_s: float, seed: int) -> Run:
    job = {
        "name": "budget",
        "environment": {"id": "BipedalWalker-v3"},
        "objective": {"max_duration": limit_s},
        "search": {"algorithms": ["ppo"]},
        "seed": seed,
    }
    path = os.pathsep.join(str(folder) for part in PARTS for folder in tree.glob(part))
    with tempfile.TemporaryDirectory(prefix="budget-") as folder:
        file = Path(folder, "job.json")
        file.write_text(json.dumps(job))
        command = [
            sys.executable,
            "-m",
            "podracer_client",
            "run",
            str(file),
            "--json",
            "--dir",
            f"{folder}/runs",
        ]
        log = Path(folder, "stderr.log")
        environment = {"PYTHONPATH": path}
        measured = run_measured(
            command,
            log,
            environment=environment,
            timeout_s=2 * limit_s + START_AND_STOP_S,
            until=("job_finished",),
        )
        finished = measured.first("job_finished")
        if finished is None:
            raise SystemExit(f"no end with {tree}\n{log.read_text()[-2000:]}")
    last, cost_s = finished[1], finished[1]["cost_seconds"]
    evaluation_s = last.get("evaluation_seconds")
    share = None if evaluation_s is None or not cost_s else evaluation_s / cost_s
    return Run(last["train_seconds"], last["env_steps"], cost_s, share, last["best_return"])


def _report(before: list[Run], now: list[Run], limit_s: float) -> None:
    rows: list[list[object]] = [
        [
            name,
            spread([run.seconds for run in runs]),
            spread([run.env_steps for run in runs]),
            spread([run.cost_s for run in runs]),
            spread([run.share for run in runs if run.share is not None])
            if runs[0].share is not None
            else "–",
            spread(
                [run.best_return for run in runs if run.best_return is not None] or [float("nan")]
            ),
        ]
        for name, runs in (("before", before), ("now", now))
        if runs
    ]
    header = [
        "code",
        "seconds",
        "environment steps",
        "device seconds",
        "share of evaluation",
        "best return",
    ]
    print_table(f"A job of {limit_s:g} s: median (least – greatest)", header, rows)
    ratios = [one.env_steps / other.env_steps for one, other in zip(now, before, strict=False)]
    targets = {
        "seconds ÷ max_duration, the worst": Target(
            max(run.seconds for run in now) / limit_s, 1.1, at_most=True
        ),
        "share of evaluation, the worst": Target(
            max(run.share or 0.0 for run in now), 0.25, at_most=True
        ),
        "steps, now ÷ before": Target(statistics.median(ratios) if ratios else None, 2.0),
    }
    finish(
        "budget",
        {"before": [vars(run) for run in before], "now": [vars(run) for run in now]},
        targets,
    )


if __name__ == "__main__":
    main()
