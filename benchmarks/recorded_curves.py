"""Records the full learning curves of one list of configurations: for each task 48 agents, trained
to the end.

The list is the same for everyone: the defaults of each algorithm of `auto`, then one Sobol sequence
over each algorithm's own search space. Curves show what selection can gain, without any new
training: benchmarks/replayed_selection.py replays methods of selection on them.

A curve has 27 looks at even CPU seconds of training, each 24 greedy episodes (the last three 32),
and one look at the untrained policy. CPU seconds are those of the process and its children, so it
may be run on a busy machine. Members of a cohort share its seconds evenly, as in a job. Looks cost
extra.

Each finished curve is a line of `--results` and is not recorded again. A cohort that is interrupted
by `--minutes` goes on where it was. `--write` copies what is there to docs/benchmarks."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from recorded.curves import Curve, append_curves, read_curves
from recorded.tasks import CONFIGURATIONS, LOOKS, TASKS, Configuration, Task, chunks, configurations
from report import Target, finish, print_table, spread, versions

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "benchmarks" / "recorded_curves.jsonl"
RESULTS = ROOT / "runs" / "benchmarks" / "recorded_curves.jsonl"
QUICK_S, QUICK_CONFIGURATIONS = 0.3, 6
LOOKS_SHARE = 0.3
"""Of a curve's seconds what its looks cost on top, until it is measured."""

Curves = dict[tuple[str, int, str], Curve]


def main() -> None:
    options = _options()
    tasks = [task for task in TASKS if not options.task or task.environment in options.task]
    if options.quick:
        tasks = [replace(TASKS[0], seconds=QUICK_S)]
    print(
        versions("torch", "gymnasium", "mujoco-core"),
        f"· finished curves in {options.results}",
        flush=True,
    )
    stop_at = time.monotonic() + 60.0 * options.minutes if options.minutes else float("inf")
    curves = read_curves(RECORD, options.results)
    begin = time.monotonic(), time.process_time()
    for task in tasks:
        _record(task, options, curves, stop_at, begin)
    if options.write:
        lines = [
            curve.to_json() for _, curve in sorted(read_curves(RECORD, options.results).items())
        ]
        RECORD.write_text("".join(f"{line}\n" for line in lines))
    _report(
        {task: _found(task, options.configurations, curves) for task in tasks},
        options.configurations,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [task.environment for task in TASKS]
    parser.add_argument(
        "--quick", action="store_true", help="CartPole, 6 curves of 0.3 s: under a minute"
    )
    parser.add_argument(
        "--task", action="append", choices=names, help="only this one; may be repeated"
    )
    parser.add_argument(
        "--configurations", type=int, default=CONFIGURATIONS, help="as many, from the list's start"
    )
    parser.add_argument("--cohort", type=int, default=16, help="the most members of a cohort")
    parser.add_argument(
        "--minutes", type=float, help="stop after so many, in the middle of a cohort"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="finished curves, a JSON line each"
    )
    parser.add_argument(
        "--write", action="store_true", help=f"all curves into {RECORD.relative_to(ROOT)}"
    )
    options = parser.parse_args()
    if options.quick:
        options.configurations = QUICK_CONFIGURATIONS
        options.results = Path(tempfile.mkdtemp(prefix="recorded-curves-"), "quick.jsonl")
    options.results = options.results.absolute()
    return options


def _record(
    task: Task,
    options: argparse.Namespace,
    curves: Curves,
    stop_at: float,
    begin: tuple[float, float],
) -> None:
    missing = [
        each
        for each in configurations(task, options.configurations)
        if _key(task, each) not in curves
    ]
    if not missing or time.monotonic() >= stop_at:
        return
    import torch
    from recorded.cohort import CohortRecording

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # MuJoCo writes its log where it stands
        for chunk in chunks(missing, options.cohort):
            state_file = options.results.with_name(
                f"{task.environment}-{chunk[0].number}.safetensors"
            )
            recording = CohortRecording(task, chunk, state_file)
            try:
                found = recording.run(stop_at)
            finally:
                recording.close()
            append_curves(options.results, found)
            curves |= {curve.key: curve for curve in found}
            left = [each for each in missing if _key(task, each) not in curves]
            partly_s = 0.0 if found else recording.trained_s * len(chunk)
            print(_line(task, chunk, found, len(left) * task.seconds - partly_s, begin), flush=True)
            if not found:
                break
        os.chdir(ROOT)


def _line(
    task: Task,
    chunk: Sequence[Configuration],
    found: Sequence[Curve],
    left_s: float,
    begin: tuple[float, float],
) -> str:
    """What was done, and when all of the task will be, at the pace so far."""
    share = (
        statistics.fmean(curve.looks_s for curve in found) / task.seconds if found else LOOKS_SHARE
    )
    left_s *= 1.0 + share
    pace = (time.process_time() - begin[1]) / max(time.monotonic() - begin[0], 1e-9)
    ready = time.strftime("%d %H:%M", time.localtime(time.time() + left_s / max(pace, 1e-3)))
    done = f"end {spread([curve.end for curve in found])}" if found else "interrupted"
    return (
        f"{task.environment}, {chunk[0].algorithm}, {len(chunk)} members: {done}; "
        f"{left_s / 60:.1f} CPU minutes left, done on day {ready} at {100 * pace:.0f} % of a core"
    )


def _key(task: Task, each: Configuration) -> tuple[str, int, str]:
    return task.environment, each.number, each.settings(task)


def _found(task: Task, count: int, curves: Mapping[tuple[str, int, str], Curve]) -> list[Curve]:
    keys = (_key(task, each) for each in configurations(task, count))
    return [curves[key] for key in keys if key in curves]


def _report(found: Mapping[Task, Sequence[Curve]], count: int) -> None:
    rows: list[list[object]] = []
    for task, curves in found.items():
        for algorithm in task.algorithms:
            own = [curve for curve in curves if curve.algorithm == algorithm]
            if own:
                steps = [curve.looks[-1].env_steps for curve in own]
                looks_s = [curve.looks_s for curve in own]
                ends = [curve.end for curve in own]
                members = spread([curve.members for curve in own])
                rows.append([
                    task.environment, algorithm, len(own), members, task.seconds,
                    statistics.fmean(looks_s), int(statistics.median(steps)), spread(ends),
                ])  # fmt: skip
    header = ["task", "algorithm", "curves", "members", "CPU s a curve", "of looks", "steps", "end"]
    print_table(f"Curves of {LOOKS} looks; medians (least – greatest)", header, rows)
    figures = {
        task.environment: {
            "curves": len(curves),
            "best": max((curve.end for curve in curves), default=None),
        }
        for task, curves in found.items()
    }
    targets = {
        f"curves of {task.environment}": Target(len(curves), count)
        for task, curves in found.items()
    }
    finish("recorded_curves", figures, targets)


if __name__ == "__main__":
    main()
