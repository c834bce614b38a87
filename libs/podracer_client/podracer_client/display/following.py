"""Choosing a display, and feeding it with what is heard of a job."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Self

from podracer.common.v1 import evolution_pb2
from podracer_client.display.displays import Display, JsonDisplay, PlainDisplay
from podracer_client.display.snapshot import AgentRow, agent_rows, take_snapshot
from podracer_client.jobs.client import Client
from podracer_client.jobs.watch import JobUpdate
from podracer_core.errors import PodracerError

_INTERVAL_S = 1.0
_INSPECTED = "ENVIRONMENT_INSPECTED"
WARNINGS = frozenset(
    {"WORLD_BROKE", "AGENT_EXCLUDED", "AGENT_FAILED", "ENVIRONMENT_WARNING", "ALGORITHM_SLOW"}
)
"""Kinds of events that people should not miss; the end of a job repeats them."""


def choose_display(*, plain: bool, json: bool) -> Display:
    """JSON lines, or log lines when asked for or when stderr is no terminal, else the live
    table."""
    if json:
        return JsonDisplay(sys.stdout, sys.stderr)
    if plain or not sys.stderr.isatty():
        return PlainDisplay(sys.stdout, sys.stderr)
    from podracer_client.display.table import TableDisplay  # late: Rich takes a while

    return TableDisplay(sys.stdout)


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
    display.show(take_snapshot(update.job, update.pods))


class AgentPoller:
    """A thread that asks a leaderboard for its agents about once a second, while open."""

    def __init__(
        self,
        client: Client,
        leaderboard: str,
        objective: evolution_pb2.Objective,
        on_agents: Callable[[Sequence[AgentRow]], None],
    ) -> None:
        """`on_agents` is called from the thread."""
        self._client = client
        self._leaderboard = leaderboard
        self._objective = objective
        self._on_agents = on_agents
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="agents", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()  # a call that is under way ends by itself; nothing waits for it

    def _poll(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            try:
                rows = agent_rows(self._client.agents(self._leaderboard), self._objective)
            except PodracerError:
                # it is being started again, or has no such leaderboard yet: the last rows stay
                continue
            if not self._stop.is_set():
                self._on_agents(rows)
