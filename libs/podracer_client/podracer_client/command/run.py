"""`podracer run`."""

from __future__ import annotations

from pathlib import Path

import typer

from podracer_client.command.options import JobFile, Json, MaxPods, Plain, StateFolderOption


def run(
    job_file: JobFile,
    folder: StateFolderOption = Path("runs"),
    plain: Plain = False,
    json: Json = False,
    max_pods: MaxPods = 0,
) -> None:
    """Run a job on this machine from start to end, on from where it stopped in the same folder."""
    from podracer_core.jobs.job_file import load_job_file

    spec = load_job_file(job_file)  # before anything is made or started

    from podracer_client.connection import DEFAULT_FOLDER
    from podracer_client.display.display import choose_display
    from podracer_client.local.run import run_job
    from podracer_client.local.services import ServiceOptions

    again = ["run", str(job_file), *(["--dir", str(folder)] if folder != DEFAULT_FOLDER else [])]
    display = choose_display(plain=plain, json=json)
    raise typer.Exit(run_job(spec, folder, display, ServiceOptions(max_pods=max_pods), again))
