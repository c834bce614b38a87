"""`podracer submit` and `watch`."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import (
    JobFile,
    JobName,
    Json,
    Plain,
    ServerOptions,
    choose_display,
    with_server,
)
from podracer_client.display.output import write_json
from podracer_client.names import best_checkpoint_name, short_name
from podracer_core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podracer_client.jobs.client import Client
    from podracer_client.jobs.job import Job
    from podracer_platform.jobs.experiment import Experiment

_SUBMISSION_LENGTH = 16


@with_server
def submit(
    server: ServerOptions,
    job_file: JobFile,
    job_id: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="ID",
            help="The job's id. Jobs of a matrix are named ID-1, ID-2, …",
            show_default="made up",
        ),
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Watch the job until it ends.")] = False,
    submission: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="Continue an interrupted submission by the id that it printed.",
            show_default="a new one",
        ),
    ] = "",
    plain: Plain = False,
    json: Json = False,
) -> None:
    """Submit a job, or all jobs of a matrix, to a server and print their names."""
    from podracer_platform.jobs.experiment import load_experiment

    experiment = load_experiment(job_file)
    _check_submission(submission)

    from podracer_client.display.messages import job_json

    with server.connect() as client:
        jobs = []
        for job in _submitted(client, experiment, submission, job_id):
            jobs.append(job)
            if json:
                write_json(job_json(job.message))
            else:
                sys.stdout.write(f"{job.name}\n")
                sys.stdout.flush()
        if not watch:
            return
        if experiment.axes:
            raise typer.Exit(_watch_all(client, experiment, jobs, json=json))
        raise typer.Exit(_watch_job(server, client, jobs[0], plain=plain, json=json))


@with_server
def watch(server: ServerOptions, job: JobName, plain: Plain = False, json: Json = False) -> None:
    """Watch a job until it ends. Ctrl-C leaves it running."""
    with server.connect() as client:
        raise typer.Exit(_watch_job(server, client, client.job(job), plain=plain, json=json))


def _check_submission(submission: str) -> None:
    if submission and not (
        submission.isalnum() and submission.isascii() and len(submission) <= 2 * _SUBMISSION_LENGTH
    ):
        raise InvalidInput(
            f"--submission {submission!r} is not a submission id; expected the one that `podracer "
            "submit` printed",
            reason="INVALID_SUBMISSION",
        )


def _submitted(
    client: Client, experiment: Experiment, submission: str, job_id: str
) -> Iterable[Job]:
    """Submit all jobs, or none if one would be refused; after an interruption, `submission`
    completes the rest."""
    from podracer_client.jobs.experiments import check_jobs, create_jobs

    if not experiment.axes and not submission:
        return [client.submit(experiment.jobs[0], job_id=job_id)]
    specs = check_jobs(client, experiment.jobs)
    submission = submission or secrets.token_hex(_SUBMISSION_LENGTH)
    again = f"if interrupted, repeat the command with --submission {submission} to continue"
    sys.stderr.write(f"submitting {len(specs)} jobs; {again}\n")
    return create_jobs(client, specs, submission, job_id=job_id)


def _watch_all(client: Client, experiment: Experiment, jobs: list[Job], *, json: bool) -> int:
    """Show all jobs until the last one has ended; the exit code."""
    from podracer_client.display.comparison import choose_experiment_display
    from podracer_client.display.summary import exit_code
    from podracer_client.jobs.experiments import follow_jobs

    display = choose_experiment_display(experiment.axes, json=json)
    latest = {job.name: job for job in jobs}
    for update in follow_jobs(client, list(latest)):
        display.show(job.message for job in update.values())
        latest = dict(update)
    display.finish([job.message for job in latest.values()], [])
    return exit_code(job.message for job in latest.values())


def _watch_job(server: ServerOptions, client: Client, job: Job, *, plain: bool, json: bool) -> int:
    """Show a job until it has ended; the exit code. `server` is what the user said to reach
    `client`'s servers."""
    from podracer_client.display.displays import show_update
    from podracer_client.display.summary import JobSummary, exit_code, next_steps

    with choose_display(plain=plain, json=json) as display:
        parts = ("agents",) if display.wants_agents and client.connection.leaderboard else ()
        for update in job.watch(parts=parts):
            job.message = update.job
            show_update(display, update)
        has_policy = job.progress.best.checkpoint.prefix or job.message.HasField("unjudged")
        checkpoint = best_checkpoint_name(job.name) if has_policy else ""
        options = server.arguments()
        commands = next_steps(
            checkpoint, [short_name(job.name), *options], checkpoint_options=options
        )
        display.finish(JobSummary(job.message, checkpoint), commands)
    return exit_code([job.message])
