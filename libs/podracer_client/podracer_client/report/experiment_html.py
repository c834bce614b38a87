"""The page of an experiment: its groups, its figures, a row for each job; and a short text with the
same facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from podracer_client.display import (
    columns,
    count_text,
    duration_text,
    interval_text,
    return_text,
)
from podracer_client.jobs import History
from podracer_client.report.experiment import Experiment, Group, axis_value, spread, to_target
from podracer_client.report.figures import (
    MAX_GROUPS,
    FigurePlan,
    Rendered,
    draw_multiples,
    draw_overlay,
    draw_spread,
    figure_element,
)
from podracer_client.report.html import element, join, page, section, table
from podracer_client.report.job_html import outcome_text

OVERLAY, MULTIPLES, SPREAD = "best-score", "by-axis", "spread"
_GROUP_FIGURES = (
    "jobs",
    "reached",
    "s to target",
    "steps to target",
    "device s to target",
    "best score",
)
_JOB_FIGURES = (
    *(
        "outcome",
        "time to target",
        "steps",
        "device s",
        "best score",
        "95 % interval",
        "confirmed",
        "agent",
    ),
)


def experiment_figures(experiment: Experiment) -> tuple[FigurePlan, ...]:
    """The figures, not drawn yet."""
    return (
        FigurePlan(
            SPREAD,
            "Best score and time to the target, by group",
            "A dot for each job, a stroke at the median of those that are there."
            + (f" The first {MAX_GROUPS} groups." if len(experiment.groups) > MAX_GROUPS else ""),
            partial(draw_spread, experiment),
        ),
        FigurePlan(
            OVERLAY,
            "Best judged score so far",
            "Every job, against time and against the steps of all its agents; a dot where it "
            "reached its target.",
            partial(draw_overlay, experiment),
        ),
        FigurePlan(
            MULTIPLES,
            "Best judged score so far, by axis",
            "A panel for each value of an axis: its jobs in colour, all others in grey.",
            partial(draw_multiples, experiment),
        ),
    )


def experiment_page(
    experiment: Experiment, plans: Iterable[FigurePlan], rendered: Mapping[str, Rendered]
) -> str:
    """The document; `rendered` are the figures by name."""
    figure = {plan.name: figure_element(plan, rendered.get(plan.name)) for plan in plans}
    count = len(experiment.jobs)
    over = ", ".join(map(experiment.title, experiment.axes)) or "nothing"
    words = f"{count:,} {'job' if count == 1 else 'jobs'} over {over}"
    statistics = " or ".join(sorted({job.objective.statistic for job in experiment.jobs}))
    caption = (
        f"The best score is the {statistics} of each job's best evaluation, confirmed where it "
        "could be. Over seeds: the median and the range. Figures to the target: of the jobs that "
        "reached it."
    )
    return page(
        f"{experiment.name}: experiment",
        (
            element(
                "header",
                join(
                    (
                        element("h1", experiment.name),
                        element("p", f"Experiment, {words}.", class_="muted"),
                    )
                ),
            ),
            section(
                "Groups",
                table(*group_table(experiment), right=_GROUP_FIGURES, caption=caption),
                figure[SPREAD],
            ),
            section("Curves", figure[OVERLAY], figure[MULTIPLES]),
            section("Jobs", table(*job_table(experiment), right=_JOB_FIGURES[1:6])),
        ),
    )


def experiment_text(experiment: Experiment) -> str:
    """The groups, and the jobs, as aligned columns."""
    groups = columns(*group_table(experiment), right=_GROUP_FIGURES)
    jobs = columns(*job_table(experiment), right=_JOB_FIGURES[1:6])
    return f"{groups}\n\n{jobs}\n"


def group_table(experiment: Experiment) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Titles, and one row per group."""
    return (*map(experiment.title, experiment.settings), *_GROUP_FIGURES), [
        (*group.values.values(), *_group_figures(group)) for group in experiment.groups
    ]


def job_table(experiment: Experiment) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Titles, and one row per job."""
    rows = [
        (job.name, *(axis_value(job, axis) for axis in experiment.axes), *_job_figures(job))
        for job in experiment.jobs
    ]
    return ("job", *map(experiment.title, experiment.axes), *_JOB_FIGURES), rows


def _group_figures(group: Group) -> tuple[str, ...]:
    jobs = group.jobs
    return (
        str(len(jobs)),
        f"{group.reached} of {len(jobs)}",
        spread([job.time_to_target_s for job in jobs], _seconds_text),
        spread([to_target(job, lambda job: job.env_steps) for job in jobs], count_text),
        spread([to_target(job, lambda job: job.cost_s) for job in jobs], _seconds_text),
        spread([job.best_score for job in jobs], return_text),
    )


def _job_figures(job: History) -> tuple[str, ...]:
    best = job.best
    return (
        outcome_text(job),
        duration_text(job.time_to_target_s),
        count_text(job.env_steps),
        _seconds_text(job.cost_s),
        return_text(job.best_score),
        interval_text(best.lower, best.upper) if best else "–",
        ("yes" if job.confirmed else "no") if best else "–",
        best.agent if best else "–",
    )


def _seconds_text(value: float) -> str:
    return f"{value:,.1f}"
