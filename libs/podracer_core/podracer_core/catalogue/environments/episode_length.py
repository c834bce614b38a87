"""The cut of evaluation episodes in an environment without a time limit."""

from __future__ import annotations

import math

MOST_EPISODE_STEPS = 10_000
_LEAST_EPISODE_STEPS = 100
_BUDGET_PART = 10  # a full evaluation takes at most such a part of the budget


def evaluation_steps(
    episodes: int, env_steps: int | None = None, seconds: float | None = None, step_s: float = 0.0
) -> int:
    """The steps after which evaluation cuts an episode: as many as a tenth of the budget pays for
    `episodes` times.

    At least 100, at most 10,000. env_steps, seconds: the budget; None: no limit. step_s: seconds of
    a step in one environment; 0: unknown."""
    paid = math.inf if env_steps is None else env_steps / _BUDGET_PART / episodes
    if seconds is not None and step_s > 0.0:
        paid = min(paid, seconds / _BUDGET_PART / episodes / step_s)
    return int(max(_LEAST_EPISODE_STEPS, min(paid, MOST_EPISODE_STEPS)))


def cut_warning(environment: str, steps: int) -> str:
    """What people are told of the cut."""
    return (
        f"{environment} has no time limit: evaluation ends episodes after {steps:,} steps; "
        "pass max_episode_steps"
    )
