"""The live table."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.displays import Display, best_text, write_summary
from podracer_client.display.numbers import count_text, duration_text, return_text
from podracer_client.display.snapshot import AgentRow, PodRow, Snapshot
from podracer_client.display.summary import JobSummary
from podracer_core.telemetry.logging import printable

_REFRESHES_PER_S = 4
_AGENT_ROWS = 12
_NEWS_ROWS = 4
_STATE_STYLES = {
    "WORKING": "green",
    "TRAINING": "green",
    "LOST": "red",
    "FAILED": "red",
    "RETIRED": "dim",
    "STOPPED": "dim",
    "STARTING": "yellow",
}


class TableDisplay(Display):
    """Redraws a table on stderr; the summary goes to `out`."""

    wants_agents = True

    def __init__(
        self,
        out: TextIO,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._console = console or Console(
            file=sys.stderr, markup=False, emoji=False, highlight=False
        )
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._seen_s = 0.0
        self._agents: Sequence[AgentRow] = ()
        self._news: deque[str] = deque(maxlen=_NEWS_ROWS)
        self._live = Live(
            console=self._console,
            get_renderable=self.render,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot, self._seen_s = snapshot, self._clock()

    def agents(self, rows: Sequence[AgentRow]) -> None:
        self._agents = rows

    def event(self, event: job_pb2.Event) -> None:
        self._news.append(printable(event.message))

    def prepared(self, text: str) -> None:
        self._console.print(Text(f"prepared  {printable(text)}"))  # above the table, where it stays

    def note(self, text: str) -> None:
        self._news.append(printable(text))

    def finish(self, summary: JobSummary, next_steps: Sequence[str]) -> None:
        self._live.stop()
        write_summary(self._out, summary, next_steps, self.warnings)

    def render(self) -> RenderableType:
        """The current contents of the screen."""
        parts: list[RenderableType] = []
        if self._snapshot is None:
            parts.append(Text("starting …", style="dim"))
        else:
            parts.append(self._header(self._snapshot))
            if self._snapshot.pods:
                parts.append(pod_table(self._snapshot.pods))
            if self._agents:
                parts.append(agent_table(self._agents, self._snapshot.statistic))
        parts.extend(
            Text(f"· {line}", style="dim", no_wrap=True, overflow="ellipsis")
            for line in list(self._news)
        )
        return Group(*parts)

    def _header(self, snapshot: Snapshot) -> RenderableType:
        # Between two updates the clock of a running job continues.
        running = snapshot.state == "RUNNING" and any(
            pod.state == "WORKING" for pod in snapshot.pods
        )
        elapsed = snapshot.train_seconds + (self._clock() - self._seen_s if running else 0.0)
        grid = Table.grid(padding=(0, 3))
        grid.add_row(
            Text(snapshot.name, style="bold"),
            Text(snapshot.state),
            Text(best_text(snapshot), style="bold"),
        )
        if snapshot.standing:
            for title, text in snapshot.standing:
                grid.add_row(title, text, "")
            return grid
        grid.add_row(
            f"elapsed {duration_text(elapsed)}   ETA {duration_text(snapshot.eta_seconds)}",
            f"{count_text(snapshot.live_env_steps)} steps",
            f"{count_text(snapshot.env_steps_per_second)} steps/s   {snapshot.agent_count} agents",
        )
        return grid


def pod_table(pods: Sequence[PodRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title, right in (
        ("pod", False),
        ("state", False),
        ("layout", False),
        ("steps/s", True),
        ("agents", False),
    ):
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for pod in pods:
        notes = f"{_some(pod.agents)}{f'  started again {pod.restarts}×' if pod.restarts else ''}"
        table.add_row(
            pod.name,
            _styled(pod.state),
            pod.layout,
            count_text(pod.env_steps_per_second),
            f"{notes}  {printable(pod.message)}" if pod.message else notes,
        )
    return table


def agent_table(agents: Sequence[AgentRow], statistic: str) -> Table:
    """The first agents of `agents`, which is sorted, and a line with the number of omitted ones."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    titles = (
        ("agent", False),
        ("algorithm", False),
        ("state", False),
        (f"best {statistic}", True),
        ("latest", True),
    )
    for title, right in (*titles, ("steps", True), ("rung", True), ("from", False)):
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for agent in agents[:_AGENT_ROWS]:
        table.add_row(
            agent.name,
            agent.algorithm,
            _styled(f"{agent.state}, breaks too often" if agent.exclusion else agent.state),
            return_text(agent.score),
            return_text(agent.latest),
            count_text(agent.env_steps),
            str(agent.rung),
            _some(agent.parents),
        )
    if len(agents) > _AGENT_ROWS:
        table.add_row(Text(f"and {len(agents) - _AGENT_ROWS} more", style="dim"))
    return table


def _styled(state: str) -> Text:
    return Text(state.lower(), style=_STATE_STYLES.get(state, ""))


def _some(names: Sequence[str], at_most: int = 6) -> str:
    return " ".join(names[:at_most]) + (f" +{len(names) - at_most}" if len(names) > at_most else "")
