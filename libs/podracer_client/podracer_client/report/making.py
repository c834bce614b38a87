"""Makes a report of a job or an experiment, with its figures and its short text; and the page of an
experiment: its groups, its figures, a row for each job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2
from podracer_client.display import columns, count_text, duration_text, interval_text, return_text
from podracer_client.files import write_whole
from podracer_client.jobs import Client, History
from podracer_client.names import best_checkpoint_name
from podracer_client.report.experiment import (
    Experiment,
    Group,
    axis_value,
    experiment_jobs,
    gather_experiment,
    spread,
    to_target,
)
from podracer_client.report.figures import (
    MAX_GROUPS,
    FigurePlan,
    Rendered,
    draw_multiples,
    draw_overlay,
    draw_spread,
    figure_element,
    render_figures,
    write_figures,
)
from podracer_client.report.html import header, page, section, table
from podracer_client.report.job_html import job_figures, job_page, origin, outcome_text
from podracer_core.errors import DataCorrupted, InvalidInput, NotFound, PreconditionFailed
from podracer_core.storage import FILE_NAME, Manifest

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
    "outcome",
    "time to target",
    "steps",
    "device s",
    "best score",
    "95 % interval",
    "confirmed",
    "agent",
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
            header(experiment.name, f"Experiment, {words}."),
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


@dataclass(frozen=True, slots=True)
class Made:
    """A report whose data are gathered, and whose figures are not drawn yet.

    facts     for programs
    versions  of the components and libraries that took part
    video     URL of a video of the result, and its caption; or none, and the reason
    """

    subject: History | Experiment
    text: str
    facts: dict[str, Any]
    versions: tuple[tuple[str, str], ...] = ()
    video: tuple[str, str] = ("", "")

    def plans(self) -> tuple[FigurePlan, ...]:
        """The figures of the report."""
        if isinstance(self.subject, History):
            return job_figures(self.subject)
        return experiment_figures(self.subject)

    def write(self, output: Path, figures: Path | None = None) -> list[Path]:
        """Write the page and, given a folder, its figures; returns their files. Raises
        InvalidInput."""
        plans = self.plans()
        rendered = render_figures(plans, png=figures is not None)
        if isinstance(self.subject, History):
            page = job_page(self.subject, plans, rendered, versions=self.versions, video=self.video)
            write_whole(output, page.encode())
        else:
            write_whole(output, experiment_page(self.subject, plans, rendered).encode())
        return write_figures(figures, rendered.values()) if figures is not None else []


def make_report(client: Client, name: str, *, experiment: bool = False) -> Made:
    """A report of the job of that name, otherwise of the experiment. Raises NotFound if neither
    exists."""
    if experiment:
        return _of_experiment(gather_experiment(client, name))
    try:
        job = client.job(name)
    except (NotFound, InvalidInput) as error:
        # no job's name, or that of several; but maybe one of an experiment
        if experiment_jobs(client, name):
            return _of_experiment(gather_experiment(client, name))
        if isinstance(error, InvalidInput) and error.reason != "INVALID_NAME":
            raise
        problem = f"there is neither a job nor an experiment called {name}; {error.message}"
        raise NotFound(problem, reason="NO_SUBJECT", name=name) from error
    report = job.history()
    facts = {"job": report.name, "state": report.state, "agents": len(report.agents)}
    return Made(report, job_text(report), facts, versions_of(client, job.message))


def _of_experiment(experiment: Experiment) -> Made:
    facts = {"experiment": experiment.name, "jobs": [job.name for job in experiment.jobs]}
    return Made(experiment, experiment_text(experiment), facts)


def job_text(report: History) -> str:
    """The result in one line, and the leaderboard."""
    figures = [
        f"{report.name}: {outcome_text(report)}",
        f"{count_text(report.env_steps)} steps",
        f"{duration_text(report.train_s)} of training",
        f"{report.cost_s:,.1f} device seconds",
        f"{report.agent_count:,} agents",
    ]
    if report.time_to_target_s is not None:
        figures.insert(1, f"target after {duration_text(report.time_to_target_s)}")
    lines = [", ".join(figures)]
    agents = {agent.name: agent for agent in report.agents}
    rows = [
        (
            str(candidate.rank),
            candidate.agent,
            agents[candidate.agent].algorithm,
            return_text(candidate.score),
            interval_text(candidate.evaluation.lower, candidate.evaluation.upper),
            *("yes" if candidate.confirmed else "no", origin(agents[candidate.agent])),
        )
        for candidate in report.candidates
        if candidate.agent in agents
    ]
    if rows:
        titles = ("rank", "agent", "algorithm", "score", "95 % interval", "confirmed", "began")
        lines.append(columns(titles, rows, right=("rank", "score", "95 % interval")))
    return "\n".join(lines) + "\n"


def versions_of(client: Client, job: job_pb2.Job) -> tuple[tuple[str, str], ...]:
    """The version of this client, and of the libraries that wrote the best checkpoint, if it is
    still there."""
    own = ("podracer-client", version("podracer-client"))
    if not job.progress.best.checkpoint.prefix:
        return (own,)
    request = artifact_service_pb2.DownloadRequest(
        name=best_checkpoint_name(job.name), paths=[FILE_NAME]
    )
    try:
        # a manifest has 16 MiB
        pieces = islice(client.artifact_service.Download(request, timeout=60.0), 20)
        content = b"".join(response.data for response in pieces)
        return (own, *sorted(Manifest.from_json(content, FILE_NAME).libraries.items()))
    except (NotFound, PreconditionFailed, DataCorrupted):
        return (own,)
