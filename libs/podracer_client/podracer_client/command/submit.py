"""`podracer submit`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from podracer_client.command.options import JobFile, Json, Plain, ServerOptions, with_server


@with_server
def submit(
    server: ServerOptions,
    job_file: JobFile,
    job_id: Annotated[str, typer.Option("--id", metavar="ID", help="The job's id.", show_default="made up")] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it has ended.")] = False,
    plain: Plain = False,
    json: Json = False,
) -> None:
    """Submit a job to a server; prints its name."""
    from podracer_core.jobs.job_file import load_job_file

    spec = load_job_file(job_file)

    from podracer_client.command.messages import job_json, write_json
    from podracer_client.command.watch import watch_job

    with server.connect() as client:
        job = client.submit(spec, job_id=job_id)
        if json:
            write_json(job_json(job.message))
        else:
            sys.stdout.write(f"{job.name}\n")
            sys.stdout.flush()
        if watch:
            raise typer.Exit(watch_job(server, client, job, plain=plain, json=json))
