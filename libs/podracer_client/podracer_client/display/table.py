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
from podracer_client.display.displays import Display, best_text, present, write_summary
from podracer_client.display.output import count_text, duration_text, return_text
from podracer_client.display.summary import JobSummary
from podracer_client.jobs.history import History, Pod
from podracer_client.jobs.score import best_first
from podracer_platform.telemetry.logging import printable

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
        self._history: History | None = None
        self._seen_s = 0.0
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

    def show(self, history: History) -> None:
        if self._history is None or history.job is not self._history.job:
            self._seen_s = self._clock()
        self._history = history

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
        if self._history is None:
            parts.append(Text("starting …", style="dim"))
        else:
            parts.append(self._header(self._history))
            if pods := present(self._history.pods):
                parts.append(pod_table(pods))
            if self._history.agents:
                parts.append(agent_table(self._history))
        parts.extend(
            Text(f"· {line}", style="dim", no_wrap=True, overflow="ellipsis")
            for line in list(self._news)
        )
        return Group(*parts)

    def _header(self, history: History) -> RenderableType:
        # Between two updates the clock of a running job continues.
        running = history.state == "RUNNING" and any(pod.state == "WORKING" for pod in history.pods)
        elapsed = history.train_s + (self._clock() - self._seen_s if running else 0.0)
        grid = Table.grid(padding=(0, 3))
        grid.add_row(
            Text(history.job.name, style="bold"),
            Text(history.state),
            Text(best_text(history), style="bold"),
        )
        if history.standing:
            for title, text in history.standing.items():
                grid.add_row(title, text, "")
            return grid
        grid.add_row(
            f"elapsed {duration_text(elapsed)}   ETA {duration_text(history.eta_s)}",
            f"{count_text(history.live_env_steps)} steps",
            f"{count_text(history.env_steps_per_second)} steps/s   {history.agent_count} agents",
        )
        return grid


def pod_table(pods: Sequence[Pod]) -> Table:
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


def agent_table(history: History) -> Table:
    """The best agents, the newest first among equals, and a line with the number of omitted
    ones."""
    agents, objective = best_first(reversed(history.agents)), history.objective
    best = f"best {objective.statistic}"
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    titles = (
        ("agent", False),
        ("algorithm", False),
        ("state", False),
        (best, True),
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
            return_text(objective.score(agent.latest) if agent.latest else None),
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
