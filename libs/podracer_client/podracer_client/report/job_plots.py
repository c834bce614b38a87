"""The figures of a job's page, with their captions."""

from __future__ import annotations

from functools import partial

from podracer_client.jobs import History
from podracer_client.report.figures import (
    MAX_AGENTS,
    MAX_LINES,
    MAX_NAMES,
    MAX_PODS,
    FigurePlan,
    draw_curves,
    draw_hyperparameters,
    draw_lineage,
    draw_pods,
    drawn_names,
)
from podracer_client.report.pods import pod_histories

CURVES_BY_STEPS, CURVES_BY_TIME = "returns-by-steps", "returns-by-time"
LINEAGE, HYPERPARAMETERS, PODS = "lineage", "hyperparameters", "pods"


def job_figures(report: History) -> tuple[FigurePlan, ...]:
    """The figures, not drawn yet."""
    return (
        FigurePlan(
            CURVES_BY_STEPS,
            "Evaluations against environment steps",
            f"Every evaluation of {_part_of(len(report.agents), MAX_LINES, 'agents')}, losers too; "
            "a child's line begins at its parent's. Bold: the line of the best. Circles: the "
            "leaderboard with 95 % intervals, filled where confirmed with fresh seeds.",
            partial(draw_curves, report, by_time=False),
        ),
        FigurePlan(
            CURVES_BY_TIME,
            "Evaluations against time",
            "The same evaluations, when they were made.",
            partial(draw_curves, report, by_time=True),
        ),
        FigurePlan(
            LINEAGE,
            "Lineage",
            f"{_part_of(len(report.agents), MAX_AGENTS, 'agents').capitalize()}: a bar from its "
            "proposal to its last evaluation, below the parent from whose weights it began, with "
            "its best score and its place on the leaderboard. Pale: lines that died out; a stroke "
            "at the end: replaced; a cross: failed.",
            partial(draw_lineage, report),
        ),
        FigurePlan(
            HYPERPARAMETERS,
            "Hyperparameters over time",
            f"What was searched{_most(report)}: a line for each judged agent over its life, the "
            "better the more orange; bold: on the leaderboard.",
            partial(draw_hyperparameters, report),
        ),
        FigurePlan(
            PODS,
            "Pods over time",
            f"{_part_of(_pod_count(report), MAX_PODS, 'pods', 'first').capitalize()}: a box for "
            "each piece of work. The steps a second are counted between evaluations.",
            partial(draw_pods, report),
        ),
    )


def _part_of(count: int, limit: int, what: str, chosen: str = "most telling") -> str:
    """`all 8 agents`, `the only agent`, `the 80 most telling of 500 agents`."""
    if count > limit:
        return f"the {limit} {chosen} of {count:,} {what}"
    return f"the only {what.removesuffix('s')}" if count == 1 else f"all {count:,} {what}"


def _most(report: History) -> str:
    return (
        f" (the {MAX_NAMES} that most agents have)" if len(drawn_names(report)) == MAX_NAMES else ""
    )


def _pod_count(report: History) -> int:
    return len(pod_histories(report.events, report.now_s))
