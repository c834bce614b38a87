"""The course of the search: the hyperparameters of every judged agent over time, coloured by its
score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from podracer_client.display import differing_names
from podracer_client.jobs import Agent, History
from podracer_client.report.figures.rendering import (
    WIDTH_IN,
    logarithmic,
    number_text,
    number_ticks,
    tidy,
    time_ticks,
)
from podracer_client.report.html import INK, MUTED
from podracer_client.report.request import searched_names
from podracer_client.report.timelines import last_evaluations, most_telling
from podracer_core.catalogue import IntegerInterval, Interval, find_algorithm
from podracer_core.errors import InvalidInput

MAX_AGENTS = 300
MAX_NAMES = 6
_COLUMNS = 3
_NARROW = 4.0
"""Values that differ by less than this factor need no logarithm."""
_POOR_TO_GOOD = LinearSegmentedColormap.from_list("score", ["#9aa1a9", "#b59a6a", "#d55e00"], N=40)
"""Grey to orange: both ends contrast with white and with black. With so few steps matplotlib draws
the colour bar as paths, not as an image."""


@dataclass(frozen=True, slots=True)
class _Life:
    """A judged agent: its begin, its end, its hyperparameters and its score. `place`: 0 for the
    worst score, 1 for the best."""

    agent: Agent
    start_s: float
    end_s: float
    place: float
    on_board: bool


def drawn_names(report: History) -> tuple[str, ...]:
    """Numbers that differ between agents: those of most agents first, at most MAX_NAMES."""
    judged = [agent for agent in report.agents if agent.score is not None]
    counts = {
        name: sum(_is_number(agent.hyperparameters.get(name)) for agent in judged)
        for name in differing_names((agent.algorithm, agent.hyperparameters) for agent in judged)
    }
    numeric = [name for name, count in counts.items() if count]
    return tuple(
        sorted(numeric, key=lambda name: (-counts[name], name != "learning_rate", name))[:MAX_NAMES]
    )


def draw_hyperparameters(report: History) -> Figure | None:
    """The hyperparameters of the agents; None if no agent was judged, or all agents have the same
    values."""
    names = drawn_names(report)
    if not names:
        return None
    lives = _lives(report)
    rows = math.ceil(len(names) / _COLUMNS)
    columns = min(_COLUMNS, len(names))
    figure = Figure(figsize=(WIDTH_IN, 0.5 + 2.3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index >= len(names):
            axes.set_visible(False)
            continue
        _draw(axes, names[index], lives, is_logarithmic=_is_logarithmic(report, names[index]))
        tidy(axes, x="", y=names[index])
        time_ticks(axes, report.now_s, "time")
        if index + columns < len(names):
            axes.set_xlabel("")
    scores = [life.agent.score for life in lives if life.agent.score is not None]
    if min(scores) < max(scores):
        bar = figure.colorbar(
            ScalarMappable(Normalize(min(scores), max(scores)), _POOR_TO_GOOD),
            ax=list(grid.flat),
            shrink=0.8,
            pad=0.02,
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, colors=MUTED, labelsize=9, labelfontfamily="DejaVu Sans")
        bar.ax.yaxis.set_major_formatter(lambda value, _: number_text(value))
        bar.ax.set_title("score", fontsize=9, color=INK, loc="left")
    return figure


def _lives(report: History) -> list[_Life]:
    """The judged agents, the worst first, so that better ones are drawn on top."""
    judged = [agent for agent in most_telling(report, MAX_AGENTS) if agent.score is not None]
    last = last_evaluations(report)
    scores = [agent.score for agent in judged if agent.score is not None]
    low, span = min(scores), (max(scores) - min(scores)) or 1.0
    board = {candidate.agent for candidate in report.candidates}
    lives = [
        _Life(
            agent,
            agent.create_s or 0.0,
            max(agent.create_s or 0.0, last.get(agent.name, 0.0)),
            ((agent.score or 0.0) - low) / span if max(scores) > low else 1.0,
            agent.name in board,
        )
        for agent in judged
    ]
    return sorted(lives, key=lambda life: life.place)


def _draw(axes: Axes, name: str, lives: Sequence[_Life], *, is_logarithmic: bool) -> None:
    values = []
    for life in lives:
        value = life.agent.hyperparameters.get(name)
        if not _is_number(value):
            continue
        height = float(value)  # type: ignore[arg-type]
        values.append(height)
        color = _POOR_TO_GOOD(life.place)
        width = 3.0 if life.on_board else 1.4
        axes.plot(
            [life.start_s, life.end_s],
            [height, height],
            color=color,
            lw=width,
            solid_capstyle="round",
        )
        axes.plot([life.start_s], [height], "o", ms=4.5 if life.on_board else 3.0, color=color)
    if is_logarithmic and max(values) > _NARROW * min(values) > 0:
        logarithmic(axes, "y", min(values), max(values))
    else:
        number_ticks(axes, "y")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_logarithmic(report: History, name: str) -> bool:
    """Whether a hyperparameter is searched by its logarithm: by the job's search space, else by its
    algorithms'."""
    searched = searched_names(report.job.spec)
    if name in searched:
        return searched[name]
    for algorithm in dict.fromkeys(agent.algorithm for agent in report.agents):
        try:
            knobs = find_algorithm(algorithm).hyperparameters
        except InvalidInput:  # of a package that is not installed here
            continue
        for knob in knobs:
            if knob.name == name and isinstance(knob.search, Interval | IntegerInterval):
                return knob.search.logarithmic
    return False
