"""`podracer watch`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import typer

from podracer_client.command.options import JobName, Json, Plain, ServerOptions, with_server

if TYPE_CHECKING:
    from podracer_client.jobs.client import Client
    from podracer_client.jobs.job import Job


@with_server
def watch(server: ServerOptions, job: JobName, plain: Plain = False, json: Json = False) -> None:
    """Watch a job until it has ended; Ctrl-C leaves it running."""
    with server.connect() as client:
        raise typer.Exit(watch_job(server, client, client.job(job), plain=plain, json=json))


def watch_job(server: ServerOptions, client: Client, job: Job, *, plain: bool, json: bool) -> int:
    """Show a job until it has ended; the exit code. `server` is what the user said to reach `client`'s servers."""
    from podracer.orchestrator.v1 import job_pb2
    from podracer_client.display.following import AgentPoller, choose_display, show_update
    from podracer_client.display.summary import JobSummary, next_steps
    from podracer_client.names import best_checkpoint_name, short_name

    with choose_display(plain=plain, json=json) as display:
        with ExitStack() as stack:
            if display.wants_agents and client.connection.leaderboard:
                objective = job.message.spec.objective
                stack.enter_context(AgentPoller(client, job.message.leaderboard, objective, display.agents))
            for update in job.watch():
                job.message = update.job
                show_update(display, update)
        checkpoint = best_checkpoint_name(job.name) if job.progress.best.checkpoint.prefix else ""
        options = server.arguments()
        commands = next_steps(checkpoint, [short_name(job.name), *options], checkpoint_options=options)
        display.finish(JobSummary(job.message, checkpoint), commands)
    return 0 if job.message.state == job_pb2.JOB_STATE_SUCCEEDED else 1
