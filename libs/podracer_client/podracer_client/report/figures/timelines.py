"""The family tree of agents over time: a bar for each, a line from its parents to its beginning.
Pods over time: the leases of each, how they ended, and other events; below, their throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from podracer_client.display import return_text
from podracer_client.jobs import Agent, History
from podracer_client.report.figures.rendering import (
    WIDTH_IN,
    legend,
    number_ticks,
    tidy,
    time_ticks,
)
from podracer_client.report.html import BAD, INK, MUTED, PAGE, SERIES, series_colors
from podracer_client.report.timelines import (
    LIVING,
    PodHistory,
    best_agent,
    family_order,
    last_evaluations,
    living_lines,
    most_telling,
    pod_histories,
    throughput,
)

MAX_AGENTS = 80
_ROW_IN = 0.21
_DEAD = 0.4
_STYLES = {"COPY": "-", "NOISE": (0, (3, 2)), "FUSE": (0, (1, 1.2))}


def draw_lineage(report: History) -> Figure | None:
    """The family tree of the agents; None if there is no agent yet."""
    agents = family_order(most_telling(report, MAX_AGENTS))
    if not agents:
        return None
    figure = Figure(figsize=(WIDTH_IN, 0.9 + _ROW_IN * max(4, len(agents))), layout="constrained")
    axes = figure.subplots()
    colors = series_colors(agent.algorithm for agent in report.agents)
    spans = _spans(report, agents)
    living, best = living_lines(report.agents), best_agent(report)
    places = {agent.name: row for row, agent in enumerate(agents)}
    ranks = {candidate.agent: candidate.rank for candidate in report.candidates}
    for agent in agents:
        strength = 1.0 if agent.name in living else _DEAD
        _draw_agent(
            axes, agent, places[agent.name], spans[agent.name], colors[agent.algorithm], strength
        )
        _draw_parents(axes, agent, places, spans, strength)
        _write(
            axes,
            agent,
            places[agent.name],
            spans[agent.name],
            ranks.get(agent.name),
            is_best=agent.name == best,
        )
    until_s = max(end for _, end in spans.values())
    axes.set_xlim(min(start for start, _ in spans.values()) - 0.01 * until_s, 1.14 * until_s or 1.0)
    axes.set_ylim(len(agents) - 0.4, -0.6)
    tidy(axes, x="")
    axes.grid(False, axis="y")
    axes.set_yticks([])
    time_ticks(axes, until_s)
    legend(axes, colors, _lineage_keys({agent.start for agent in agents}))
    return figure


def _spans(report: History, agents: Sequence[Agent]) -> Mapping[str, tuple[float, float]]:
    """The time of each agent from its proposal until its last evaluation, or until now if it is in
    training."""
    last = last_evaluations(report)
    spans = {}
    for agent in agents:
        start = agent.create_s or 0.0
        end = (
            report.now_s
            if agent.state == "TRAINING" and not report.ended
            else last.get(agent.name, start)
        )
        spans[agent.name] = (start, max(start, end))
    return spans


def _draw_agent(
    axes: Axes, agent: Agent, row: int, span: tuple[float, float], color: str, strength: float
) -> None:
    axes.plot(
        span, [row, row], color=color, lw=4.5, alpha=strength, solid_capstyle="butt", zorder=3
    )
    if not agent.parents:
        axes.plot([span[0]], [row], "o", ms=5.5, mfc=PAGE, mec=color, mew=1.6, zorder=4)
    if agent.state == "FAILED":
        axes.plot([span[1]], [row], "x", ms=6, color=BAD, mew=1.8, zorder=5)
    elif agent.state not in LIVING:
        axes.plot([span[1]], [row], "|", ms=9, color=color, mew=1.8, alpha=strength, zorder=4)


def _draw_parents(
    axes: Axes,
    agent: Agent,
    places: Mapping[str, int],
    spans: Mapping[str, tuple[float, float]],
    strength: float,
) -> None:
    row, start = places[agent.name], spans[agent.name][0]
    for parent in agent.parents:
        if parent not in places or parent == agent.name:
            continue
        above = places[parent]
        from_s = min(max(start, spans[parent][0]), spans[parent][1])
        path = Path(
            [(from_s, above), (from_s, row), (start, row)], [Path.MOVETO, Path.LINETO, Path.LINETO]
        )
        style = _STYLES.get(agent.start, "-")
        axes.add_patch(
            PathPatch(
                path, fill=False, ec=MUTED, lw=1.0, ls=style, alpha=max(strength, 0.55), zorder=2
            )
        )


def _write(
    axes: Axes,
    agent: Agent,
    row: int,
    span: tuple[float, float],
    rank: int | None,
    *,
    is_best: bool,
) -> None:
    words = (
        agent.name
        if agent.score is None
        else f"{agent.name}  {return_text(agent.score).replace('-', '−')}"
    )
    if rank is not None:
        words += f"   no. {rank}"
    axes.annotate(
        words,
        (span[1], row),
        (8, 0),
        textcoords="offset points",
        va="center",
        color=INK if rank is not None else MUTED,
        fontsize=8.5,
        fontweight="bold" if is_best else "normal",
        zorder=6,
    )


def _lineage_keys(starts: set[str]) -> dict[str, Line2D]:
    """The legend of the marks in the figure."""
    keys = {}
    if "FRESH" in starts:
        keys["fresh"] = Line2D([], [], ls="none", marker="o", mfc=PAGE, mec=MUTED, mew=1.6)
    words = {"COPY": "copy", "NOISE": "copy with noise", "FUSE": "fused"}
    for start, word in words.items():
        if start in starts:
            keys[word] = Line2D([], [], color=MUTED, lw=1.0, ls=_STYLES[start])
    return keys


MAX_PODS = 60
_POD_ROW_IN = 0.24
_BAR = 0.55
_WORKED, _GAVE_BACK = SERIES[0], SERIES[4]


def draw_pods(report: History) -> Figure | None:
    """The work of the pods over time; None if no pod has worked yet."""
    histories = pod_histories(report.events, report.now_s)[:MAX_PODS]
    edges, rates = throughput(report)
    if not histories:
        return None
    has_rates = any(rates)
    height = 0.8 + _POD_ROW_IN * max(2, len(histories))
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
    legend(above, {}, _pod_keys(histories))
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


def _pod_keys(histories: tuple[PodHistory, ...]) -> dict[str, Line2D]:
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
