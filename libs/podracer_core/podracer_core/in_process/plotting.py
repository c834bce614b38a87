"""A training as a figure."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from podracer_core.errors import PreconditionFailed
from podracer_core.in_process.reporting import Look


def plot_looks(
    history: Sequence[Look],
    title: str,
    target: float | None,
    training: Sequence[tuple[int, float]] = (),
) -> Any:
    """A matplotlib figure: a thin line for each member, a thick one for the best so far, the
    target, and the returns of `training` episodes by environment steps.

    Raises PreconditionFailed if matplotlib is missing, or the history is empty.
    """
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        message = f"figures need the extra podracer-core[plot]: {error}"
        raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
    if not history:
        raise PreconditionFailed(
            "nothing to plot: training was too short for an evaluation, or its history was not "
            "stored"
        )
    figure, axes = pyplot.subplots(figsize=(7.0, 4.0), layout="constrained")
    if training:
        axes.plot(
            *zip(*training, strict=True),
            color="tab:orange",
            linewidth=1.0,
            label="training episodes",
        )
    steps = [look.env_steps for look in history]
    for member in range(len(history[0].returns)):
        axes.plot(
            steps,
            [look.returns[member] for look in history],
            color="tab:blue",
            alpha=0.35,
            linewidth=1.0,
        )
    axes.plot(
        steps, [look.best for look in history], color="tab:blue", linewidth=2.0, label="best so far"
    )
    if target is not None:
        axes.axhline(target, color="tab:gray", linestyle="--", label="target")
    axes.set(title=title, xlabel="environment steps of all members", ylabel="return")
    axes.legend(loc="lower right")
    # a notebook shows what a cell ends with, and would show open figures once more
    pyplot.close(figure)
    return figure
