"""The interface of a display, and the simple ones: log lines, and JSON objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Self, TextIO

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.numbers import count_text, duration_text, return_text, time_json
from podracer_client.display.output import write_json
from podracer_client.display.snapshot import AgentRow, Snapshot
from podracer_client.display.summary import JobSummary
from podracer_client.names import moment

_LINE_INTERVAL_S = 2.0
_PROGRESS_INTERVAL_S = 1.0


class Display:
    """Shows a job while it runs. Everything is optional; results go to stdout, all else to
    stderr."""

    wants_agents = False
    """Whether `agents` should be called now and then: it costs a call to the leaderboard."""
    warnings: tuple[str, ...] = ()
    """The job's warnings so far."""
    summary: JobSummary | None = None
    """The summary of the job when `podracer run` ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Give the terminal back."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the job as it is now."""

    def agents(self, rows: Sequence[AgentRow]) -> None:
        """Show the job's agents as they are now, best first."""

    def event(self, event: job_pb2.Event) -> None:
        """Show an event of the job."""

    def prepared(self, text: str) -> None:
        """Show the changes that the environment made to the user's data, known once it has been
        inspected."""

    def note(self, text: str) -> None:
        """Show news of the processes around the job."""

    def finish(self, summary: JobSummary, next_steps: Sequence[str]) -> None:
        """Show that the job has ended, or that we stop watching; called once, last."""


class PlainDisplay(Display):
    """A line every two seconds and one for each event on stderr; the end on stdout."""

    def __init__(
        self, out: TextIO, diagnostics: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._diagnostics = diagnostics
        self._clock = clock
        self._next_s = 0.0
        self._last = ""

    def show(self, snapshot: Snapshot) -> None:
        now = self._clock()
        if now < self._next_s and snapshot.state == self._last:
            return
        self._next_s, self._last = now + _LINE_INTERVAL_S, snapshot.state
        self._log(progress_line(snapshot))

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


class JsonDisplay(Display):
    """`progress` about once a second; `job_event`, `prepared` and `note` as they happen;
    `job_finished` at the end.

    Why a job has failed goes to `diagnostics`, for people.
    """

    def __init__(
        self, out: TextIO, diagnostics: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._diagnostics = diagnostics
        self._clock = clock
        self._next_s = 0.0
        self._state = ""

    def show(self, snapshot: Snapshot) -> None:
        now = self._clock()
        if now < self._next_s and snapshot.state == self._state:
            return
        self._next_s, self._state = now + _PROGRESS_INTERVAL_S, snapshot.state
        write_json(
            {
                "event": "progress",
                "job": snapshot.name,
                "state": snapshot.state,
                "env_steps": snapshot.env_steps,
                "live_env_steps": snapshot.live_env_steps,
                "env_steps_per_second": round(snapshot.env_steps_per_second, 1),
                "best_return": snapshot.best_return,
                "best_lower_bound": snapshot.best_lower_bound,
                "target_return": snapshot.target_return,
                "train_seconds": round(snapshot.train_seconds, 3),
                "eta_seconds": snapshot.eta_seconds,
                "agents": snapshot.agent_count,
                "pods": len(snapshot.pods),
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


def progress_line(snapshot: Snapshot) -> str:
    """A job in one line."""
    if snapshot.standing:
        return "  ".join(
            [snapshot.state.lower(), *(f"{title} {text}" for title, text in snapshot.standing)]
        )
    parts = [
        f"{snapshot.state.lower()} {duration_text(snapshot.train_seconds)}",
        f"{len(snapshot.pods)} pods",
        f"{snapshot.agent_count} agents",
        f"{count_text(snapshot.live_env_steps)} steps",
        f"{count_text(snapshot.env_steps_per_second)} steps/s",
        best_text(snapshot),
    ]
    if snapshot.eta_seconds is not None:
        parts.append(f"budget ends in {duration_text(snapshot.eta_seconds)}")
    return "  ".join(parts)


def best_text(snapshot: Snapshot) -> str:
    """`best -201.3 (lower bound; mean -182.4, target -200.0)`, or `best Sharpe 0.45 (…)`."""
    inside = []
    if snapshot.best_return is not None and snapshot.statistic != "mean":
        inside.append(f"{snapshot.statistic}; mean {return_text(snapshot.best_return)}")
    if snapshot.target_return is not None:
        inside.append(f"target {return_text(snapshot.target_return)}")
    best = "best" if snapshot.score_name == "return" else f"best {snapshot.score_name}"
    return f"{best} {return_text(snapshot.best_score)}" + (
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
