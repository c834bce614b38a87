"""Pods over time: the leases of each, how they ended, and other events; below, their throughput."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from podracer_client.jobs import History
from podracer_client.report.figures.rendering import (
    WIDTH_IN,
    legend,
    number_ticks,
    tidy,
    time_ticks,
)
from podracer_client.report.html import BAD, INK, MUTED, PAGE, SERIES
from podracer_client.report.pods import PodHistory, pod_histories, throughput

MAX_PODS = 60
_ROW_IN = 0.24
_BAR = 0.55
_WORKED, _GAVE_BACK = SERIES[0], SERIES[4]


def draw_pods(report: History) -> Figure | None:
    """The work of the pods over time; None if no pod has worked yet."""
    histories = pod_histories(report.events, report.now_s)[:MAX_PODS]
    edges, rates = throughput(report)
    if not histories:
        return None
    has_rates = any(rates)
    height = 0.8 + _ROW_IN * max(2, len(histories))
    figure = Figure(figsize=(WIDTH_IN, height + 2.0 * has_rates), layout="constrained")
    if has_rates:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[height, 2.0])
    else:
        above, below = figure.subplots(), None
    _draw_histories(above, histories)
    until_s = max([report.now_s, *(history.last_s for history in histories)]) or 1.0
    above.set_xlim(0.0, 1.02 * until_s)
    tidy(above, x="")
    above.grid(False, axis="y")
    legend(above, {}, _keys(histories))
    last = above
    if below is not None:
        _draw_rates(below, edges, rates)
        last = below
        above.tick_params(labelbottom=False)
    time_ticks(last, until_s)
    return figure


def _draw_histories(axes: Axes, histories: tuple[PodHistory, ...]) -> None:
    for row, history in enumerate(histories):
        axes.plot([history.first_s, history.last_s], [row, row], color=MUTED, lw=1.0, zorder=2)
        for span in history.spans:
            axes.barh(
                row,
                span.end_s - span.start_s,
                left=span.start_s,
                height=_BAR,
                color=_color(span.was_lost, span.end),
                edgecolor=PAGE,
                lw=0.8,
                zorder=3,
            )
        for event in history.incidents:
            axes.plot(
                [event.time_s],
                [row],
                "v",
                ms=7,
                mfc=BAD if _is_bad(event.kind) else INK,
                mec=PAGE,
                zorder=4,
            )
    axes.set_ylim(len(histories) - 0.4, -0.6)
    axes.set_yticks(range(len(histories)), [history.name for history in histories])


def _color(was_lost: bool, end: str) -> str:
    if was_lost:
        return BAD
    return _GAVE_BACK if end == "LEASE_RELEASED" else _WORKED


def _is_bad(kind: str) -> bool:
    return any(word in kind for word in ("RESTARTED", "LOST", "DIED", "KILLED", "FAILED"))


def _draw_rates(axes: Axes, edges: list[float], rates: list[float]) -> None:
    axes.stairs(rates, edges, fill=True, color=_WORKED, alpha=0.35)
    axes.stairs(rates, edges, color=_WORKED, lw=1.2)
    axes.set_ylim(0.0, max(rates) * 1.1)
    tidy(axes, x="", y="environment steps a second, all pods")
    number_ticks(axes, "y")


def _keys(histories: tuple[PodHistory, ...]) -> dict[str, Line2D]:
    """The legend of the colours and marks in the figure."""
    spans = [span for history in histories for span in history.spans]
    incidents = [event for history in histories for event in history.incidents]
    keys = {}
    if any(_color(span.was_lost, span.end) == _WORKED for span in spans):
        keys["at work"] = Line2D([], [], color=_WORKED, lw=6)
    if any(span.end == "LEASE_RELEASED" for span in spans):
        keys["handed its work back"] = Line2D([], [], color=_GAVE_BACK, lw=6)
    if any(span.was_lost for span in spans):
        keys["lost its work"] = Line2D([], [], color=BAD, lw=6)
    if any(_is_bad(event.kind) for event in incidents):
        keys["died"] = Line2D([], [], ls="none", marker="v", mfc=BAD, mec=PAGE, ms=7)
    if any(not _is_bad(event.kind) for event in incidents):
        keys["other news"] = Line2D([], [], ls="none", marker="v", mfc=INK, mec=PAGE, ms=7)
    return keys
