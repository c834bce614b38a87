"""The number by which a job's evaluations rank, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from podracer.common.v1 import agent_pb2, environment_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue import described_environment
from podracer_core.statistics import posterior_means
from podracer_platform.messages import arguments_from_message

__all__ = ["best_first", "best_score", "corrected_means", "score", "score_name", "statistic"]


class Judged(Protocol):
    """An agent of a table: its best score, and why it cannot be first."""

    @property
    def score(self) -> float | None: ...

    @property
    def exclusion(self) -> str: ...


Row = TypeVar("Row", bound=Judged)


def best_first(agents: Iterable[Row]) -> list[Row]:
    """Agents in the order of all tables: by score, then those without one, then those that cannot
    be first."""
    return sorted(
        agents, key=lambda row: (bool(row.exclusion), row.score is None, -(row.score or 0.0))
    )


def score_name(
    environment: environment_pb2.EnvironmentSpec, changes: Mapping[str, object] | None = None
) -> str:
    """`Sharpe` of a market whose agents are ranked by that; `return` elsewhere, also of an
    environment unknown here. `changes` are arguments that take the place of its own."""
    info = described_environment(environment.id)
    if info is None:
        return "return"
    arguments = arguments_from_message(environment.kwargs, "environment.kwargs")
    return info.score_name({**arguments, **(changes or {})})


def score(evaluation: agent_pb2.Evaluation, objective: evolution_pb2.Objective) -> float:
    """The number of an evaluation that the objective looks at."""
    if objective.statistic == evolution_pb2.TARGET_STATISTIC_MEAN:
        return evaluation.mean
    return evaluation.lower_bound


def statistic(objective: evolution_pb2.Objective) -> str:
    """The name of that number."""
    return "mean" if objective.statistic == evolution_pb2.TARGET_STATISTIC_MEAN else "lower bound"


def best_score(job: job_pb2.Job) -> float | None:
    """The number by which a job's best ranks, with its broken episodes; None without one."""
    return job.progress.best_score if job.progress.HasField("best_score") else None


def corrected_means(evaluations: Sequence[agent_pb2.Evaluation]) -> tuple[float, ...]:
    """The means of a leaderboard's evaluations, each drawn to all of them by as much as its
    episodes leave open: the best of many noisy numbers promises too much."""
    means = [each.mean for each in evaluations]
    variances = [each.standard_deviation**2 for each in evaluations]
    return posterior_means(means, [max(1, len(each.returns)) for each in evaluations], variances)
