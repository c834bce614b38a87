"""The jobs of an experiment: what happens to each, and all side by side at the end."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO, TypeVar

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.output import (
    columns,
    count_text,
    duration_text,
    return_text,
    write_json,
)
from podracer_client.display.summary import missed_target, result_word
from podracer_client.jobs import History, score_name
from podracer_client.names import enum_word, seconds, short_name
from podracer_platform.jobs import axis_label

JobType = TypeVar("JobType")

_SEED = "seed"
_NUMBERS = ("to target", "steps", "device s", "reached", "median to target")


def choose_experiment_display(axes: Sequence[str], *, json: bool) -> ExperimentDisplay:
    """JSON lines, or log lines and a table."""
    return (JsonExperimentDisplay if json else ExperimentDisplay)(axes, sys.stdout, sys.stderr)


class ExperimentDisplay:
    """A line on stderr whenever a job changes its state or has a new best; the comparison on
    stdout."""

    def __init__(self, axes: Sequence[str], out: TextIO, diagnostics: TextIO) -> None:
        self._axes = axes
        self._out = out
        self._diagnostics = diagnostics
        self._shown: dict[str, tuple[str, float | None]] = {}

    def show(self, jobs: Iterable[job_pb2.Job]) -> None:
        """All jobs as they are now."""
        for job in jobs:
            history = History(job)
            now = (history.state, history.best_score)
            if self._shown.get(job.name) != now:
                self._shown[job.name] = now
                self.changed(history)

    def changed(self, history: History) -> None:
        """Show that a job has another state, or a new best."""
        best = f", best {return_text(history.best.mean)}" if history.best else ""
        why = f": {history.problem.message}" if history.problem else ""
        steps = f"{count_text(history.env_steps)} steps"
        self.note(f"{history.job.spec.display_name}  {history.state.lower()}{best}, {steps}{why}")

    def note(self, text: str) -> None:
        """Show news of the processes around the jobs."""
        self._diagnostics.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
        self._diagnostics.flush()

    def finish(self, jobs: Sequence[job_pb2.Job], next_steps: Sequence[str]) -> None:
        """Show the end: the jobs have ended, or we stop watching; called once, last."""
        text = (
            comparison_text(jobs, self._axes)
            if jobs
            else "the server has not reported the jobs yet"
        )
        if missed := [short_name(job.name) for job in jobs if missed_target(job)]:
            text += f"\n\nbudget used, target missed: {', '.join(missed)}"
        if next_steps:
            text += "\nnext\n" + "\n".join(f"  {command}" for command in next_steps)
        self._out.write(f"{text}\n")
        self._out.flush()


class JsonExperimentDisplay(ExperimentDisplay):
    """One JSON object a line: `job_changed`, `note`, and `experiment_finished` with every job at
    the end."""

    def changed(self, history: History) -> None:
        write_json({"event": "job_changed", **comparison_json(history.job, self._axes)}, self._out)

    def note(self, text: str) -> None:
        write_json({"event": "note", "message": text}, self._out)

    def finish(self, jobs: Sequence[job_pb2.Job], next_steps: Sequence[str]) -> None:
        found = [comparison_json(job, self._axes) for job in jobs]
        write_json({"event": "experiment_finished", "jobs": found}, self._out)


def comparison_json(job: job_pb2.Job, axes: Sequence[str]) -> dict[str, Any]:
    """A job's place in the matrix and its figures."""
    progress = job.progress
    return {
        "job": job.name,
        "state": enum_word(job_pb2.JobState, job.state),
        "outcome": enum_word(job_pb2.JobOutcome, job.outcome) or None,
        "matrix": {axis: _value(job, axis) for axis in axes},
        "best_return": _best(job),
        "seconds_to_target": History(job).time_to_target_s,
        "env_steps": progress.env_steps,
        "cost_seconds": round(seconds(progress.cost), 3),
        "problem": job.problem.message if job.HasField("problem") else None,
    }


def comparison_text(jobs: Sequence[job_pb2.Job], axes: Sequence[str]) -> str:
    """A row for each job; where seeds are an axis besides others, below it a row for all repeats of
    one combination."""
    called = axis_titles(axes)
    best = f"best {' or '.join(sorted({score_name(job.spec.environment) for job in jobs}))}"
    titles = ["job", *called.values(), "state", best, "to target", "steps", "device s"]
    rows = [
        [
            short_name(job.name),
            *(_value(job, axis) for axis in axes),
            result_word(job).lower().replace("_", " "),
            return_text(_best(job)),
            duration_text(History(job).time_to_target_s),
            count_text(job.progress.env_steps),
            count_text(seconds(job.progress.cost)),
        ]
        for job in jobs
    ]
    text = columns(titles, rows, right=(best, *_NUMBERS))
    others = settings(axes)
    if 0 < len(others) < len(axes):
        text += "\n\n" + _over_seeds(
            jobs, axes, [called[axis] for axis in others], f"median {best}"
        )
    return text


def _over_seeds(
    jobs: Sequence[job_pb2.Job], axes: Sequence[str], titles: Sequence[str], median_best: str
) -> str:
    rows = []
    for values, group in grouped_over_seeds(jobs, axes, _value).items():
        times = [found for job in group if (found := History(job).time_to_target_s) is not None]
        best = [found for job in group if (found := _best(job)) is not None]
        rows.append(
            [
                *values,
                f"{len(times)} of {len(group)}",
                return_text(statistics.median(best) if best else None),
                duration_text(statistics.median(times) if times else None),
            ]
        )
    return columns(
        [*titles, "reached", median_best, "median to target"], rows, right=(median_best, *_NUMBERS)
    )


def _value(job: job_pb2.Job, axis: str) -> str:
    return job.spec.labels.get(axis_label(axis), "")


def _best(job: job_pb2.Job) -> float | None:
    return job.progress.best.mean if job.progress.HasField("best") else None


def is_seed(axis: str) -> bool:
    """Whether jobs that differ only there are repeats: they differ in nothing but their
    randomness."""
    return axis.rpartition(".")[2] == _SEED


def settings(axes: Iterable[str]) -> tuple[str, ...]:
    """The axes without the seeds."""
    return tuple(axis for axis in axes if not is_seed(axis))


def axis_titles(axes: Sequence[str]) -> dict[str, str]:
    """Axis → `learning_rate` for `search.space.learning_rate`, as long as no other axis ends so."""
    last = {axis: axis.rpartition(".")[2] for axis in axes}
    return {
        axis: short if list(last.values()).count(short) == 1 else axis
        for axis, short in last.items()
    }


def grouped_over_seeds(
    jobs: Iterable[JobType], axes: Iterable[str], value: Callable[[JobType, str], str]
) -> dict[tuple[str, ...], list[JobType]]:
    """The jobs by their values of the settings; `value` is a job's of an axis."""
    chosen = settings(axes)
    groups: dict[tuple[str, ...], list[JobType]] = {}
    for job in jobs:
        groups.setdefault(tuple(value(job, axis) for axis in chosen), []).append(job)
    return groups
