"""Makes a report: of a job or an experiment, with its page, its figures and its short text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podracer_client.display.numbers import count_text, duration_text, interval_text, return_text
from podracer_client.display.output import columns
from podracer_client.files import write_whole
from podracer_client.jobs.client import Client
from podracer_client.report.agent_tables import origin
from podracer_client.report.experiment import Experiment, experiment_jobs, gather_experiment
from podracer_client.report.experiment_page import (
    experiment_figures,
    experiment_page,
    experiment_text,
)
from podracer_client.report.figures.rendering import FigurePlan, render_figures, write_figures
from podracer_client.report.gather import gather
from podracer_client.report.job_figures import job_figures
from podracer_client.report.job_page import job_page, outcome_text
from podracer_client.report.records import JobReport
from podracer_core.errors import InvalidInput, NotFound


@dataclass(frozen=True, slots=True)
class Made:
    """A report whose data are gathered, and whose figures are not drawn yet; `facts` are for
    programs."""

    subject: JobReport | Experiment
    text: str
    facts: dict[str, Any]

    def plans(self) -> tuple[FigurePlan, ...]:
        """The figures of the report."""
        if isinstance(self.subject, JobReport):
            return job_figures(self.subject)
        return experiment_figures(self.subject)

    def write(self, output: Path, figures: Path | None = None) -> list[Path]:
        """Write the page and, given a folder, its figures; returns their files. Raises
        InvalidInput."""
        plans = self.plans()
        rendered = render_figures(plans, png=figures is not None)
        if isinstance(self.subject, JobReport):
            write_whole(output, job_page(self.subject, plans, rendered).encode())
        else:
            write_whole(output, experiment_page(self.subject, plans, rendered).encode())
        return write_figures(figures, rendered.values()) if figures is not None else []


def make_report(client: Client, name: str, *, experiment: bool = False) -> Made:
    """A report of the job of that name, otherwise of the experiment. Raises NotFound if neither
    exists."""
    if experiment:
        return _of_experiment(gather_experiment(client, name))
    try:
        job = client.job(name).name
    except (NotFound, InvalidInput) as error:
        # no job's name, or that of several; but maybe one of an experiment
        if experiment_jobs(client, name):
            return _of_experiment(gather_experiment(client, name))
        if isinstance(error, InvalidInput) and error.reason != "INVALID_NAME":
            raise
        problem = f"there is neither a job nor an experiment called {name}; {error.message}"
        raise NotFound(problem, reason="NO_SUBJECT", name=name) from error
    return _of_job(gather(client, job))


def _of_job(report: JobReport) -> Made:
    facts = {"job": report.name, "state": report.state, "agents": len(report.agents)}
    return Made(report, job_text(report), facts)


def _of_experiment(experiment: Experiment) -> Made:
    facts = {"experiment": experiment.name, "jobs": [job.name for job in experiment.jobs]}
    return Made(experiment, experiment_text(experiment), facts)


def job_text(report: JobReport) -> str:
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
            *(
                str(candidate.rank),
                candidate.agent,
                agents[candidate.agent].algorithm,
                return_text(candidate.score),
            ),
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
