"""What a destination of `podracer log` has to do."""

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
    """One evaluation: its scalars by name at `step`, the environment steps of the agent and its ancestors.

    position  its number among the evaluations of the job, from 1; it grows from point to point
    time_s    when it was made, seconds since 1970
    """

    position: int
    step: int
    time_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AgentRun:
    """What a run is about."""

    job: job_pb2.Job
    agent: Agent

    @property
    def tags(self) -> dict[str, str]:
        """Where the agent belongs and where it came from."""
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
        """Lists, such as the widths of layers, are text."""
        plain = self.agent.hyperparameters.items()
        return {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in plain}


class Logger(Protocol):
    """One destination for one job. What it raises ends the following; the same command goes on later.

    position  how many of the job's evaluations it has; what came after was never committed
    """

    position: int

    def describe(self, run: AgentRun) -> None:
        """Tell it of an agent before its first points in this process; it may know the agent already."""

    def log(self, agent: str, points: Sequence[Point]) -> None:
        """Add points to an agent's run."""

    def commit(self, position: int) -> None:
        """All points up to `position` are logged: remember that."""

    def close(self) -> None:
        """End the runs."""
