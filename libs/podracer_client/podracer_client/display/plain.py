"""Log lines: for a terminal that is none, and for who likes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.display import Display
from podracer_client.display.numbers import count_text, duration_text, return_text
from podracer_client.display.snapshot import Snapshot
from podracer_client.display.summary import JobSummary

_INTERVAL_S = 2.0


class PlainDisplay(Display):
    """A line every two seconds and one for each event on stderr; the end on stdout."""

    def __init__(self, out: TextIO, diagnostics: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._diagnostics = diagnostics
        self._clock = clock
        self._next_s = 0.0
        self._last = ""

    def show(self, snapshot: Snapshot) -> None:
        now = self._clock()
        if now < self._next_s and snapshot.state == self._last:
            return
        self._next_s, self._last = now + _INTERVAL_S, snapshot.state
        self._log(progress_line(snapshot))

    def event(self, event: job_pb2.Event) -> None:
        self._log(f"{event.kind}: {event.message}", event.time.seconds)

    def prepared(self, text: str) -> None:
        self._log(f"prepared: {text}")

    def note(self, text: str) -> None:
        self._log(text)

    def finish(self, summary: JobSummary, next_steps: Sequence[str]) -> None:
        write_summary(self._out, summary, next_steps)

    def _log(self, text: str, seconds: int = 0) -> None:
        when = time.localtime(seconds or None)
        self._diagnostics.write(f"{time.strftime('%H:%M:%S', when)}  {text}\n")
        self._diagnostics.flush()


def progress_line(snapshot: Snapshot) -> str:
    """A job in one line."""
    if snapshot.standing:
        return "  ".join([snapshot.state.lower(), *(f"{title} {text}" for title, text in snapshot.standing)])
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
    """`best -182.4 (lower bound -201.3, target -200.0)`, or `best Sharpe 0.45 (…)`."""
    inside = []
    if snapshot.best_return is not None and snapshot.statistic != "mean":
        inside.append(f"{snapshot.statistic} {return_text(snapshot.best_score)}")
    if snapshot.target_return is not None:
        inside.append(f"target {return_text(snapshot.target_return)}")
    best = "best" if snapshot.score_name == "return" else f"best {snapshot.score_name}"
    return f"{best} {return_text(snapshot.best_return)}" + (f" ({', '.join(inside)})" if inside else "")


def write_summary(out: TextIO, summary: JobSummary, next_steps: Sequence[str]) -> None:
    """The end of a job, for people."""
    lines = summary.lines()
    if next_steps:
        lines += ["next", *(f"  {command}" for command in next_steps)]
    out.write("\n".join(lines) + "\n")
    out.flush()
