"""The jobs of an experiment grouped over seeds: the same on a terminal and in a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

__all__ = ["axis_titles", "grouped_over_seeds", "is_seed", "settings"]

Job = TypeVar("Job")

_SEED = "seed"


def is_seed(axis: str) -> bool:
    """Whether jobs that differ only there are repeats: they differ in nothing but their randomness."""
    return axis.rpartition(".")[2] == _SEED


def settings(axes: Iterable[str]) -> tuple[str, ...]:
    """The axes without the seeds."""
    return tuple(axis for axis in axes if not is_seed(axis))


def axis_titles(axes: Sequence[str]) -> dict[str, str]:
    """Axis → `learning_rate` for `search.space.learning_rate`, as long as no other axis ends so."""
    last = {axis: axis.rpartition(".")[2] for axis in axes}
    return {axis: short if list(last.values()).count(short) == 1 else axis for axis, short in last.items()}


def grouped_over_seeds(
    jobs: Iterable[Job], axes: Iterable[str], value: Callable[[Job, str], str]
) -> dict[tuple[str, ...], list[Job]]:
    """The jobs by their values of the settings; `value` is a job's of an axis."""
    chosen = settings(axes)
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(tuple(value(job, axis) for axis in chosen), []).append(job)
    return groups
