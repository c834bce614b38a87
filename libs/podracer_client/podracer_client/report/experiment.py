"""Jobs of one experiment: the values that differ, the result of each, grouped over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from podracer_client.display import (
    axis_titles,
    grouped_over_seeds,
    is_seed,
    settings,
)
from podracer_client.jobs import Client, History
from podracer_client.report.timelines import job_steps
from podracer_core.errors import NotFound
from podracer_platform.jobs import EXPERIMENT_LABEL, axis_label

AXIS_PREFIX = axis_label("")

_MAX_EVALUATIONS = 200_000
_LEAST_EVALUATIONS = 200


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that differ in their seeds only; `values` by the axes' titles."""

    values: Mapping[str, str]
    jobs: tuple[History, ...]

    @property
    def name(self) -> str:
        """`learning_rate 0.001, gamma 0.9`; `all` if only the seed varies."""
        return ", ".join(f"{axis} {value}" for axis, value in self.values.items()) or "all"

    @property
    def reached(self) -> int:
        """The number of jobs that reached their target."""
        return sum(job.time_to_target_s is not None for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Experiment:
    """The jobs with the label `experiment: name`, ordered by their values."""

    name: str
    jobs: tuple[History, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The parameters that vary, the seed last."""
        found = {
            label.removeprefix(AXIS_PREFIX)
            for job in self.jobs
            for label in job.labels
            if is_axis(label)
        }
        return tuple(sorted(found, key=lambda axis: (is_seed(axis), axis)))

    @property
    def settings(self) -> tuple[str, ...]:
        """The axes without the seed."""
        return settings(self.axes)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The jobs grouped over seeds."""
        axes = self.axes
        found = grouped_over_seeds(self.jobs, axes, axis_value)
        titles = list(map(self.title, settings(axes)))
        return tuple(
            Group(dict(zip(titles, key, strict=True)), tuple(jobs)) for key, jobs in found.items()
        )

    def title(self, axis: str) -> str:
        """The title of an axis."""
        return axis_titles(self.axes)[axis]

    def values(self, axis: str) -> tuple[str, ...]:
        """The values of an axis, in order."""
        return tuple(
            dict.fromkeys(sorted((axis_value(job, axis) for job in self.jobs), key=_order))
        )


def is_axis(label: str) -> bool:
    return label.startswith(AXIS_PREFIX)


def axis_value(job: History, axis: str) -> str:
    """The value of an axis for a job; empty if it has none."""
    return job.labels.get(AXIS_PREFIX + axis, "")


def experiment_jobs(client: Client, name: str) -> list[str]:
    """The names of its jobs, oldest first."""
    jobs = client.jobs()
    return [
        job.name for job in reversed(jobs) if job.message.spec.labels.get(EXPERIMENT_LABEL) == name
    ]


def gather_experiment(client: Client, name: str) -> Experiment:
    """An experiment's jobs with their curves, without their events. Raises NotFound if there is
    none."""
    names = experiment_jobs(client, name)
    if not names:
        raise NotFound(
            f"there is no experiment {name}: no job has the label {EXPERIMENT_LABEL}: {name}",
            reason="NO_EXPERIMENT",
        )
    share = max(_LEAST_EVALUATIONS, _MAX_EVALUATIONS // len(names))
    return experiment_of(
        name, [client.job(job).history(max_evaluations=share, max_events=0) for job in names]
    )


def experiment_of(name: str, jobs: Sequence[History]) -> Experiment:
    """The jobs ordered by the values of the axes."""
    axes = Experiment(name, tuple(jobs)).axes
    ordered = sorted(jobs, key=lambda job: [_order(axis_value(job, axis)) for axis in axes])
    return Experiment(name, tuple(ordered))


def best_so_far(job: History) -> list[tuple[float, float, float]]:
    """Seconds since its first work, steps of all agents, and the best judged score so far, at every
    improvement."""
    found: list[tuple[float, float, float]] = []
    for evaluation, steps in job_steps(job):
        score = job.objective.score(evaluation) if evaluation.judges else None
        if score is not None and (not found or score > found[-1][2]):
            found.append(((evaluation.time_s or 0.0) - (job.start_s or 0.0), steps, score))
    return found


def to_target(job: History, figure: Callable[[History], float | None]) -> float | None:
    """A figure of a job when it reached its target; None if it did not."""
    return figure(job) if job.time_to_target_s is not None else None


def spread(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    """`12.3 (10.1 to 15.0)`: the median and the range of the known values; `–` for none."""
    present = sorted(value for value in values if value is not None)
    if not present:
        return "–"
    middle = text(statistics.median(present))
    return middle if len(present) == 1 else f"{middle} ({text(present[0])} to {text(present[-1])})"


def _order(value: str) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    try:
        return (0, float(value), value)
    except ValueError:
        return (1, 0.0, value)
