"""Names of evaluators, without torch: what they do is in podracer_core.evaluate.

A package adds one with an entry point in the group `podracer.evaluators`. It is loaded by learners and evaluators only.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

ENTRY_POINT_GROUP = "podracer.evaluators"

GREEDY_EPISODES, BACKTEST = "greedy_episodes", "backtest"

BUILT_IN_EVALUATORS = (
    EntryPoint(GREEDY_EPISODES, "podracer_core.evaluate.greedy_evaluator:GreedyEvaluator", ENTRY_POINT_GROUP),
    EntryPoint(BACKTEST, "podracer_core.evaluate.backtesting:BacktestEvaluator", ENTRY_POINT_GROUP),
)


def evaluator_names() -> list[str]:
    """The built-in evaluators and those of packages that are installed here."""
    return sorted({entry.name for entry in [*BUILT_IN_EVALUATORS, *entry_points(group=ENTRY_POINT_GROUP)]})
