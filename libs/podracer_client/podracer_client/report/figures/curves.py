"""Returns of every evaluation against environment steps of the lineage, or against time, of
unsuccessful agents too."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from podracer_client.jobs import Agent, Evaluation, History
from podracer_client.report.experiment import Experiment, axis_value, best_so_far
from podracer_client.report.figures.rendering import (
    WIDTH_IN,
    legend,
    logarithmic,
    number_ticks,
    tidy,
    time_ticks,
)
from podracer_client.report.html import INK, MUTED, PAGE, SERIES, series_colors
from podracer_client.report.timelines import best_agent, most_telling

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
            axes,
            _ancestral_line(best, agents, lines),
            colors[next(each.algorithm for each in agents if each.name == best)],
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
                f"{candidate.rank}  {candidate.agent}",
                (x, evaluation.mean),
                (7, 5),
                textcoords="offset points",
                color=INK,
                fontsize=8.5,
            )
            text.set(path_effects=halo, zorder=8)


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


MAX_GROUPS = 40
MAX_PANELS = 6
MAX_AXES = 4
_LEGEND_CHARACTERS = 120

Curve = list[tuple[float, float]]


def draw_overlay(experiment: Experiment) -> Figure | None:
    """Every job's best score so far, against time and against steps. None if no candidate was
    judged."""
    by_time, by_steps = (_curves(experiment.jobs, place) for place in (0, 1))
    if not any(by_time.values()):
        return None
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = {job.name: group.name for group in experiment.groups for job in group.jobs}
    colors = series_colors(names.values())
    for axes, curves in ((left, by_time), (right, by_steps)):
        for job in experiment.jobs:
            _draw_curve(axes, curves[job.name], colors[names[job.name]])
            if job.time_to_target_s is not None and curves[job.name]:
                axes.plot(
                    *curves[job.name][-1],
                    "o",
                    ms=5,
                    mfc=colors[names[job.name]],
                    mec=PAGE,
                    zorder=4,
                )
        _draw_targets(axes, experiment.jobs)
        number_ticks(axes, "y")
    tidy(left, x="", y="best judged score so far")
    tidy(right, x="environment steps of all agents")
    time_ticks(
        left, max(x for curve in by_time.values() for x, _ in curve), "time since the first work"
    )
    right.xaxis.set_major_locator(MaxNLocator(5))
    number_ticks(right)
    left.autoscale_view()
    right.autoscale_view()
    if 1 < len(colors) <= len(SERIES):
        _legend(figure, colors)
    return figure


def draw_multiples(experiment: Experiment) -> Figure | None:
    """A row for each axis, a panel for each of its values: its jobs in colour, all others in
    grey."""
    curves = _curves(experiment.jobs, 0)
    axes_names = [axis for axis in experiment.settings if len(experiment.values(axis)) > 1][
        :MAX_AXES
    ]
    if not axes_names or not any(curves.values()):
        return None
    columns = min(MAX_PANELS, max(len(experiment.values(axis)) for axis in axes_names))
    figure = Figure(figsize=(WIDTH_IN, 0.4 + 2.3 * len(axes_names)), layout="constrained")
    grid = figure.subplots(len(axes_names), columns, sharex=True, sharey=True, squeeze=False)
    until_s = max(x for curve in curves.values() for x, _ in curve)
    for row, (axis, color) in enumerate(zip(axes_names, SERIES, strict=False)):
        values = experiment.values(axis)[:columns]
        for panel in grid[row, len(values) :]:
            panel.set_visible(False)
        for panel, value in zip(grid[row], values, strict=False):
            own = {job.name for job in experiment.jobs if axis_value(job, axis) == value}
            others = [curve for name, curve in curves.items() if name not in own]
            panel.add_collection(
                LineCollection(
                    [_steps(curve) for curve in others], colors=MUTED, lw=0.8, alpha=0.35
                )
            )
            for name in own:
                _draw_curve(panel, curves[name], color)
            _draw_targets(panel, experiment.jobs)
            panel.autoscale_view()
            tidy(panel, x="", y=f"{experiment.title(axis)} {value}")
            number_ticks(panel, "y")
            time_ticks(panel, until_s, "time")
            if row < len(axes_names) - 1:
                panel.set_xlabel("")
    return figure


def draw_spread(experiment: Experiment) -> Figure | None:
    """Best scores and times to the target by group, and their medians. None if no candidate was
    judged."""
    groups = experiment.groups[:MAX_GROUPS]
    if not any(job.best_score is not None for group in groups for job in group.jobs):
        return None
    figure = Figure(figsize=(WIDTH_IN, 0.9 + 0.3 * max(2, len(groups))), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    scores = [[job.best_score for job in group.jobs] for group in groups]
    times = [[job.time_to_target_s for job in group.jobs] for group in groups]
    _draw_dots(left, scores)
    _draw_dots(right, times)
    left.set_ylim(len(groups) - 0.5, -0.5)
    left.set_yticks(range(len(groups)), [group.name for group in groups])
    _draw_targets(left, experiment.jobs, upright=True)
    tidy(left, x="best score")
    number_ticks(left)
    tidy(right, x="")
    known = [time for row in times for time in row if time is not None]
    if known:
        right.set_xlim(0.0, 1.08 * max(known) or 1.0)
        time_ticks(right, max(known), "training time to the target")
    else:
        right.set_visible(False)
    return figure


def _legend(figure: Figure, colors: Mapping[str, str]) -> None:
    """The groups below both axes, in as many columns as fit."""
    figure.legend(
        [Line2D([], [], color=color, linewidth=2.5) for color in colors.values()],
        list(colors),
        loc="outside lower left",
        ncols=max(1, min(len(colors), _LEGEND_CHARACTERS // (max(map(len, colors)) + 6))),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )


def _curves(jobs: Iterable[History], place: int) -> dict[str, Curve]:
    """Time (place 0) or steps (place 1) and score; constant until the end of the job, so that late
    starts are visible."""
    found = {}
    for job in jobs:
        points = best_so_far(job)
        curve = [(point[place], point[2]) for point in points]
        if curve:
            end = job.now_s - (job.start_s or 0.0) if place == 0 else float(job.env_steps)
            curve.append((max(end, curve[-1][0]), curve[-1][1]))
        found[job.name] = curve
    return found


def _steps(curve: Curve) -> Curve:
    """Step curves: the best score stays constant until the next improvement."""
    found: Curve = []
    for x, y in curve:
        if found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    return found


def _draw_curve(axes: Axes, curve: Curve, color: str) -> None:
    if curve:
        axes.plot(*zip(*_steps(curve), strict=True), color=color, lw=1.5, alpha=0.85, zorder=3)


def _draw_targets(axes: Axes, jobs: Iterable[History], *, upright: bool = False) -> None:
    for target in sorted(
        {job.objective.target for job in jobs if job.objective.target is not None}
    ):
        line = axes.axvline if upright else axes.axhline
        line(target, color=INK, lw=1.1, ls=(0, (5, 4)), zorder=2)


def _draw_dots(axes: Axes, rows: Sequence[Sequence[float | None]]) -> None:
    for row, values in enumerate(rows):
        present = [value for value in values if value is not None]
        if not present:
            continue
        axes.plot([min(present), max(present)], [row, row], color=MUTED, lw=1.0, zorder=2)
        axes.plot(
            present, [row] * len(present), "o", ms=6, mfc=SERIES[0], mec=PAGE, alpha=0.75, zorder=3
        )
        axes.plot([statistics.median(present)], [row], "|", ms=15, color=INK, mew=2.0, zorder=4)
