"""The jobs of an experiment: the best score so far of each, one axis at a time, and the spread over
seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from podracer_client.jobs import History
from podracer_client.report.experiment import Experiment, axis_value, best_so_far
from podracer_client.report.figures.rendering import WIDTH_IN, number_ticks, tidy, time_ticks
from podracer_client.report.html import INK, MUTED, PAGE, SERIES, series_colors

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
