"""Figures of the documents, without a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def panels(columns: int = 1, width: float = 4.2, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels beside one another, `width` by `height` inches each."""
    figure = Figure(figsize=(columns * width, height), dpi=110, layout="constrained")
    axes: Any = figure.subplots(1, columns, squeeze=False)
    for each in axes[0]:
        each.grid(alpha=0.3)
    return figure, list(axes[0])


def curve(
    axes: Axes, at: Sequence[float], middle: Sequence[float], low: Sequence[float],
    high: Sequence[float], label: str,
) -> None:  # fmt: skip
    """A line with its interval as a shade."""
    axes.plot(at, middle, label=label)
    axes.fill_between(at, low, high, alpha=0.2)
    axes.legend(fontsize=8)
