"""The interface of a display, and the simple ones: log lines, and JSON objects; choosing one, and
feeding it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Self, TextIO

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.output import count_text, duration_text, return_text, write_json
from podracer_client.display.summary import JobSummary
from podracer_client.jobs import History, JobUpdate, Pod
from podracer_client.names import moment, time_json

_INSPECTED = "ENVIRONMENT_INSPECTED"
WARNINGS = frozenset(
    {"WORLD_BROKE", "AGENT_EXCLUDED", "AGENT_FAILED", "ENVIRONMENT_WARNING", "ALGORITHM_SLOW"}
)
"""Kinds of events that people should not miss; the end of a job repeats them."""


class Display:
    """Shows a job while it runs. Everything is optional; results go to stdout, all else to
    stderr."""

    wants_agents = False
    """Whether it shows the agents of the history: they cost calls to the leaderboard."""
    warnings: tuple[str, ...] = ()
    """The job's warnings so far."""
    summary: JobSummary | None = None
    """The summary of the job when `podracer run` ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Give the terminal back."""

    def show(self, history: History) -> None:
        """Show the job as it is now."""

    def event(self, event: job_pb2.Event) -> None:
        """Show an event of the job."""

    def prepared(self, text: str) -> None:
        """Show the changes that the environment made to the user's data, known once it has been
        inspected."""

    def note(self, text: str) -> None:
        """Show news of the processes around the job."""

    def finish(self, summary: JobSummary, next_steps: Sequence[str]) -> None:
        """Show that the job has ended, or that we stop watching; called once, last."""


class _Lines(Display):
    """Shows the job at intervals, and whenever its state changes."""

    interval_s: float

    def __init__(
        self, out: TextIO, diagnostics: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._diagnostics = diagnostics
        self._clock = clock
        self._next_s = 0.0
        self._state = ""

    def show(self, history: History) -> None:
        now = self._clock()
        if now >= self._next_s or history.state != self._state:
            self._next_s, self._state = now + self.interval_s, history.state
            self._progress(history)

    def _progress(self, history: History) -> None:
        raise NotImplementedError


class PlainDisplay(_Lines):
    """A line every two seconds and one for each event on stderr; the end on stdout."""

    interval_s = 2.0

    def _progress(self, history: History) -> None:
        self._log(progress_line(history))

    def event(self, event: job_pb2.Event) -> None:
        self._log(f"{event.kind}: {event.message}", moment(event.time))

    def prepared(self, text: str) -> None:
        self._log(f"prepared: {text}")

    def note(self, text: str) -> None:
        self._log(text)

    def finish(self, summary: JobSummary, next_steps: Sequence[str]) -> None:
        write_summary(self._out, summary, next_steps, self.warnings)

    def _log(self, text: str, when: datetime | None = None) -> None:
        self._diagnostics.write(f"{(when or datetime.now(UTC)).astimezone():%H:%M:%S}  {text}\n")
        self._diagnostics.flush()


class JsonDisplay(_Lines):
    """`progress` about once a second; `job_event`, `prepared` and `note` as they happen;
    `job_finished` at the end.

    Why a job has failed goes to `diagnostics`, for people.
    """

    interval_s = 1.0

    def _progress(self, history: History) -> None:
        write_json(
            {
                "event": "progress",
                "job": history.job.name,
                "state": history.state,
                "env_steps": history.env_steps,
                "live_env_steps": history.live_env_steps,
                "env_steps_per_second": round(history.env_steps_per_second, 1),
                "best_return": history.best.mean if history.best else None,
                "best_lower_bound": history.best.lower if history.best else None,
                "target_return": history.objective.target,
                "train_seconds": round(history.train_s, 3),
                "eta_seconds": history.eta_s,
                "agents": history.agent_count,
                "pods": len(present(history.pods)),
            },
            self._out,
        )

    def event(self, event: job_pb2.Event) -> None:
        write_json(
            {
                "event": "job_event",
                "kind": event.kind,
                "message": event.message,
                "subject": event.subject,
                "details": dict(event.details),
                "time": time_json(event.time),
            },
            self._out,
        )

    def prepared(self, text: str) -> None:
        write_json({"event": "prepared", "message": text}, self._out)

    def note(self, text: str) -> None:
        write_json({"event": "note", "message": text}, self._out)

    def finish(self, summary: JobSummary, next_steps: Sequence[str]) -> None:
        write_json({**summary.to_json(), "warnings": list(self.warnings)}, self._out)
        self._diagnostics.writelines(f"{line}\n" for line in summary.problem_lines())


def present(pods: Sequence[Pod]) -> list[Pod]:
    """The pods that have not left for good."""
    return [pod for pod in pods if pod.state != "STOPPED"]


def progress_line(history: History) -> str:
    """A job in one line."""
    if standing := history.standing:
        return "  ".join(
            [history.state.lower(), *(f"{title} {text}" for title, text in standing.items())]
        )
    parts = [
        f"{history.state.lower()} {duration_text(history.train_s)}",
        f"{len(present(history.pods))} pods",
        f"{history.agent_count} agents",
        f"{count_text(history.live_env_steps)} steps",
        f"{count_text(history.env_steps_per_second)} steps/s",
        best_text(history),
    ]
    if history.eta_s is not None:
        parts.append(f"budget ends in {duration_text(history.eta_s)}")
    return "  ".join(parts)


def best_text(history: History) -> str:
    """`best -201.3 (lower bound; mean -182.4, target -200.0)`, or `best Sharpe 0.45 (…)`."""
    inside = []
    if history.best is not None and not history.objective.by_mean:
        inside.append(f"{history.objective.statistic}; mean {return_text(history.best.mean)}")
    if history.objective.target is not None:
        inside.append(f"target {return_text(history.objective.target)}")
    best = "best" if history.score_name == "return" else f"best {history.score_name}"
    return f"{best} {return_text(history.best_score)}" + (
        f" ({', '.join(inside)})" if inside else ""
    )


def write_summary(
    out: TextIO, summary: JobSummary, next_steps: Sequence[str], warnings: Sequence[str] = ()
) -> None:
    """The end of a job, for people."""
    lines = [*summary.lines(), *(f"warning      {text}" for text in warnings)]
    if next_steps:
        lines += ["next", *(f"  {command}" for command in next_steps)]
    out.write("\n".join(lines) + "\n")
    out.flush()


def show_update(display: Display, update: JobUpdate) -> None:
    """Events first, in their order, then the job as it is after them."""
    for event in update.events:
        display.event(event)
        if event.kind in WARNINGS:
            display.warnings += (event.message,)
        if event.kind == _INSPECTED and (
            preparation := update.job.environment_description.preparation
        ):
            display.prepared(preparation)
    display.show(update.history)
