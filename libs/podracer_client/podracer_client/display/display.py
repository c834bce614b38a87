"""The interface of a display."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.snapshot import AgentRow, Snapshot
from podracer_client.display.summary import JobSummary


class Display:
    """Shows a job while it runs. Everything is optional; results go to stdout, all else to stderr."""

    wants_agents = False
    """Whether `agents` should be called now and then: it costs a call to the leaderboard."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the terminal back."""

    def show(self, snapshot: Snapshot) -> None:
        """The job as it is now."""

    def agents(self, rows: Sequence[AgentRow]) -> None:
        """Its agents as they are now, best first."""

    def event(self, event: job_pb2.Event) -> None:
        """Something happened to the job."""

    def prepared(self, text: str) -> None:
        """What the environment did to the user's data, known now that it has been inspected."""

    def note(self, text: str) -> None:
        """Something happened to the processes around it."""

    def finish(self, summary: JobSummary, next_steps: Sequence[str]) -> None:
        """It has ended, or we stop watching; called once, last."""
