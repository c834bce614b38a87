"""The interface of the destinations of `podracer log`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from podracer.orchestrator.v1 import job_pb2
from podracer_client.names import short_name
from podracer_client.report.records import Agent

__all__ = ["AgentRun", "Logger", "Point"]


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation: its scalars by name at `step`, the environment steps of the agent and its
    ancestors.

    position  its number among the evaluations of the job, from 1 upwards
    time_s    the time of the evaluation, in seconds since 1970
    """

    position: int
    step: int
    time_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AgentRun:
    """The agent of a run."""

    job: job_pb2.Job
    agent: Agent

    @property
    def tags(self) -> dict[str, str]:
        """The job and the origin of the agent."""
        asked = self.job.spec.environment
        return {
            "job": short_name(self.job.name),
            "agent": self.agent.name,
            "environment": asked.id or asked.entry_point,
            "algorithm": self.agent.algorithm,
            "operation": self.agent.start.lower(),
            "parents": " ".join(self.agent.parents),
        }

    @property
    def hyperparameters(self) -> dict[str, bool | int | float | str]:
        """The hyperparameters; lists, such as the widths of layers, as text."""
        plain = self.agent.hyperparameters.items()
        return {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in plain
        }


class Logger(Protocol):
    """One destination for one job. Its errors end the command; the same command continues later.

    position  the number of the job's evaluations that are committed
    """

    position: int

    def describe(self, run: AgentRun) -> None:
        """Describe an agent before its first points in this process; the destination may have it
        already."""

    def log(self, agent: str, points: Sequence[Point]) -> None:
        """Add points to an agent's run."""

    def commit(self, position: int) -> None:
        """Store that all points up to `position` are logged."""

    def close(self) -> None:
        """End the runs."""
