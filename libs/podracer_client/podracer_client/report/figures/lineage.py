"""The family tree of agents over time: a bar for each agent, a line from its parents to its
beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from podracer_client.display import return_text
from podracer_client.jobs import Agent, History
from podracer_client.report.families import (
    LIVING,
    best_agent,
    family_order,
    living_lines,
    most_telling,
)
from podracer_client.report.figures.rendering import WIDTH_IN, legend, tidy, time_ticks
from podracer_client.report.html import BAD, INK, MUTED, PAGE, series_colors

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
    legend(axes, colors, _keys({agent.start for agent in agents}))
    return figure


def _spans(report: History, agents: Sequence[Agent]) -> Mapping[str, tuple[float, float]]:
    """The time of each agent from its proposal until its last evaluation, or until now if it is in
    training."""
    last: dict[str, float] = {}
    for evaluation in report.evaluations:
        if evaluation.time_s is not None:
            last[evaluation.agent] = max(evaluation.time_s, last.get(evaluation.agent, 0.0))
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


def _keys(starts: set[str]) -> dict[str, Line2D]:
    """The legend of the marks in the figure."""
    keys = {}
    if "FRESH" in starts:
        keys["fresh"] = Line2D([], [], ls="none", marker="o", mfc=PAGE, mec=MUTED, mew=1.6)
    words = {"COPY": "copy", "NOISE": "copy with noise", "FUSE": "fused"}
    for start, word in words.items():
        if start in starts:
            keys[word] = Line2D([], [], color=MUTED, lw=1.0, ls=_STYLES[start])
    return keys
