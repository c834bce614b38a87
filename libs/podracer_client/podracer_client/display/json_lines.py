"""One JSON object a line, on stdout; the last one is `job_finished`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.display import Display
from podracer_client.display.output import write_json
from podracer_client.display.snapshot import Snapshot
from podracer_client.display.summary import JobSummary

_INTERVAL_S = 1.0


class JsonDisplay(Display):
    """`progress` about once a second; `job_event`, `prepared` and `note` as they happen; `job_finished` at the end.

    Why a job has failed goes to `diagnostics`, for people.
    """

    def __init__(self, out: TextIO, diagnostics: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._diagnostics = diagnostics
        self._clock = clock
        self._next_s = 0.0
        self._state = ""

    def show(self, snapshot: Snapshot) -> None:
        now = self._clock()
        if now < self._next_s and snapshot.state == self._state:
            return
        self._next_s, self._state = now + _INTERVAL_S, snapshot.state
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
                "time": event.time.ToJsonString(),
            },
            self._out,
        )

    def prepared(self, text: str) -> None:
        write_json({"event": "prepared", "message": text}, self._out)

    def note(self, text: str) -> None:
        write_json({"event": "note", "message": text}, self._out)

    def finish(self, summary: JobSummary, next_steps: Sequence[str]) -> None:
        write_json(summary.to_json(), self._out)
        self._diagnostics.writelines(f"{line}\n" for line in summary.problem_lines())
