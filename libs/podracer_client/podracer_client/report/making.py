"""Makes a report: of a job or an experiment, with its page, its figures and its short text."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2
from podracer_client.display import (
    columns,
    count_text,
    duration_text,
    interval_text,
    return_text,
)
from podracer_client.files import write_whole
from podracer_client.jobs import Client, History
from podracer_client.names import best_checkpoint_name
from podracer_client.report.experiment import (
    Experiment,
    experiment_figures,
    experiment_jobs,
    experiment_page,
    experiment_text,
    gather_experiment,
)
from podracer_client.report.figures import FigurePlan, render_figures, write_figures
from podracer_client.report.job_html import job_figures, job_page, origin, outcome_text
from podracer_core.errors import DataCorrupted, InvalidInput, NotFound, PreconditionFailed
from podracer_core.storage import FILE_NAME, Manifest


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
    return _of_job(job.history(), versions_of(client, job.message))


def _of_job(report: History, versions: tuple[tuple[str, str], ...]) -> Made:
    facts = {"job": report.name, "state": report.state, "agents": len(report.agents)}
    return Made(report, job_text(report), facts, versions)


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
