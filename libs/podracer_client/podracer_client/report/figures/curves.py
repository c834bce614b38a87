"""Returns of every evaluation against environment steps of the lineage, or against time, of
unsuccessful agents too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from podracer_client.jobs import Agent, Candidate, Evaluation, History
from podracer_client.report.families import best_agent, most_telling
from podracer_client.report.figures.rendering import (
    WIDTH_IN,
    legend,
    logarithmic,
    number_ticks,
    tidy,
    time_ticks,
)
from podracer_client.report.html import INK, MUTED, PAGE, series_colors

MAX_LINES = 400
_MAX_DOTS = 600
_MAX_LABELS = 8
_FAR = 3.0
"""Returns further below the others than this many times their spread are outside the figure."""
_UNEQUAL = 12.0
"""If the longest line is this many times the median one, the axis of steps is logarithmic."""

Point = tuple[float, float]


def draw_curves(report: History, *, by_time: bool) -> Figure | None:
    """The agents' evaluations as curves; None if nothing was evaluated."""
    agents = most_telling(report, MAX_LINES)
    lines = _lines(report.evaluations, agents, by_time=by_time)
    if not any(lines.values()):
        return None
    figure = Figure(figsize=(WIDTH_IN, 4.6), layout="constrained")
    axes = figure.subplots()
    colors = series_colors(agent.algorithm for agent in report.agents)
    _draw_all(axes, agents, lines, colors)
    best = best_agent(report)
    if lines.get(best):
        _draw_best(
            axes, _ancestral_line(best, agents, lines), colors[_named(agents, best).algorithm]
        )
    _draw_candidates(axes, report, colors, by_time=by_time)
    _set_limits(axes, report, [line for line in lines.values() if line], by_time=by_time)
    _draw_target(axes, report)
    tidy(
        axes,
        x="environment steps of the agent and its ancestors",
        y=f"{report.score_title} of an evaluation",
    )
    number_ticks(axes, "y")
    if by_time:
        time_ticks(axes, report.now_s)
    elif axes.get_xscale() == "linear":
        number_ticks(axes)
    bold = Line2D([], [], color=MUTED, linewidth=4.0)
    legend(axes, colors, {"line of the best": bold} if lines.get(best) else None)
    return figure


def _lines(
    evaluations: Iterable[Evaluation], agents: Sequence[Agent], *, by_time: bool
) -> dict[str, list[Point]]:
    """The points of every agent, beginning with the last one of its parent. Of several at the same
    steps the one with most episodes counts."""
    at_steps: dict[str, dict[int, Evaluation]] = {agent.name: {} for agent in agents}
    for evaluation in evaluations:
        known = at_steps.get(evaluation.agent)
        if known is None or (by_time and evaluation.time_s is None):
            continue
        present = known.get(evaluation.env_steps)
        if present is None or evaluation.episodes > present.episodes:
            known[evaluation.env_steps] = evaluation
    lines = {}
    for agent in agents:
        own = [
            (_place(each, by_time=by_time), each.mean)
            for _, each in sorted(at_steps[agent.name].items())
        ]
        inherited = [
            each
            for name in agent.parents[:1]
            if (each := at_steps.get(name, {}).get(agent.start_steps)) is not None
        ]
        if own and inherited:
            start = (
                agent.create_s
                if by_time and agent.create_s is not None
                else _place(inherited[0], by_time=by_time)
            )
            own.insert(0, (min(start, own[0][0]), inherited[0].mean))
        lines[agent.name] = sorted(own)
    return lines


def _place(evaluation: Evaluation, *, by_time: bool) -> float:
    return evaluation.time_s or 0.0 if by_time else float(evaluation.env_steps)


def _draw_all(
    axes: Axes, agents: Sequence[Agent], lines: dict[str, list[Point]], colors: dict[str, str]
) -> None:
    width = 1.1 if len(agents) <= 40 else 0.6
    for algorithm, color in colors.items():
        own = [lines[agent.name] for agent in agents if agent.algorithm == algorithm]
        axes.add_collection(
            LineCollection(
                [line for line in own if len(line) > 1], colors=color, lw=width, alpha=0.5
            )
        )
        dots = [point for line in own for point in line]
        if sum(map(len, lines.values())) > _MAX_DOTS:
            dots = [line[0] for line in own if len(line) == 1]
        axes.plot(*zip(*dots, strict=True), ".", color=color, ms=3, alpha=0.6) if dots else None


def _ancestral_line(
    best: str, agents: Sequence[Agent], lines: dict[str, list[Point]]
) -> list[Point]:
    """The points of an agent, before them those of its first parents up to where each child
    began."""
    by_name = {agent.name: agent for agent in agents}
    line: list[Point] = []
    name, seen = best, set[str]()
    while name in by_name and name not in seen:
        seen.add(name)
        first = line[0][0] if line else float("inf")
        line = [point for point in lines[name] if point[0] <= first] + line
        name = by_name[name].parents[0] if by_name[name].parents else ""
    return line


def _draw_best(axes: Axes, line: Sequence[Point], color: str) -> None:
    halo = [withStroke(linewidth=4.0, foreground=PAGE)]
    axes.plot(
        *zip(*line, strict=True),
        color=color,
        lw=2.4,
        path_effects=halo,
        solid_capstyle="round",
        zorder=5,
    )


def _draw_candidates(axes: Axes, report: History, colors: dict[str, str], *, by_time: bool) -> None:
    """Places of the board with their intervals; hollow if not confirmed."""
    halo = [withStroke(linewidth=2.5, foreground=PAGE)]
    algorithms = {agent.name: agent.algorithm for agent in report.agents}
    for candidate in report.candidates:
        evaluation = candidate.evaluation
        if by_time and evaluation.time_s is None:
            continue
        x = _place(evaluation, by_time=by_time)
        color = colors.get(algorithms.get(candidate.agent, ""), INK)
        if evaluation.lower is not None and evaluation.upper is not None:
            axes.plot(
                [x, x],
                [evaluation.lower, evaluation.upper],
                "_-",
                color=INK,
                lw=1.1,
                ms=6,
                zorder=6,
            )
        face, edge = (color, PAGE) if candidate.confirmed else (PAGE, color)
        axes.plot([x], [evaluation.mean], "o", ms=7.5, mfc=face, mec=edge, mew=1.8, zorder=7)
        if candidate.rank <= _MAX_LABELS:
            text = axes.annotate(
                _label(candidate),
                (x, evaluation.mean),
                (7, 5),
                textcoords="offset points",
                color=INK,
                fontsize=8.5,
            )
            text.set(path_effects=halo, zorder=8)


def _label(candidate: Candidate) -> str:
    return f"{candidate.rank}  {candidate.agent}"


def _set_limits(
    axes: Axes, report: History, lines: Sequence[Sequence[Point]], *, by_time: bool
) -> None:
    """Room for target and intervals; a few returns far below all others do not compress the
    rest."""
    points = [point for line in lines for point in line]
    heights = sorted(height for _, height in points)
    low, high = heights[len(heights) // 50], heights[-1]
    if low - heights[0] <= _FAR * (high - low):
        low = heights[0]
    extra = [report.objective.target] if report.objective.target is not None else []
    for candidate in report.candidates:
        extra += [
            bound
            for bound in (candidate.evaluation.lower, candidate.evaluation.upper)
            if bound is not None
        ]
    low, high = min([low, *extra]), max([high, *extra])
    margin = 0.06 * (high - low) or max(1.0, 0.05 * abs(high))
    axes.set_ylim(low - margin, high + margin)
    ends = sorted(max(x for x, _ in line) for line in lines)
    right = max(x for x, _ in points)
    axes.set_xlim(0.0, right * 1.1 or 1.0)
    if not by_time and len(ends) > 2 and right > _UNEQUAL * ends[len(ends) // 2] > 0:
        left = min(x for x, _ in points if x > 0)
        logarithmic(axes, "x", left, right)
        axes.set_xlim(0.9 * left, 1.4 * right)


def _draw_target(axes: Axes, report: History) -> None:
    target = report.objective.target
    if target is None:
        return
    axes.axhline(target, color=INK, lw=1.2, ls=(0, (5, 4)), zorder=4)
    axes.annotate(
        f"target {target:,g}".replace("-", "−"),
        (0.0, target),
        (3, 4),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        color=MUTED,
        fontsize=8.5,
        path_effects=[withStroke(linewidth=2.5, foreground=PAGE)],
    )


def _named(agents: Iterable[Agent], name: str) -> Agent:
    return next(agent for agent in agents if agent.name == name)
