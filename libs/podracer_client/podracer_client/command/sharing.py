"""`podracer log` and `push`: a job in the user's experiment tracker, a policy in a place for
others."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from podracer_client.command.options import JobName, Json, ServerOptions, with_server
from podracer_client.display import write_json
from podracer_client.names import is_job_name, short_name


@with_server
def log(
    server: ServerOptions,
    name: JobName,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="tensorboard:DIR|mlflow:URI|wandb:PROJECT",
            help="The tracker to log to; may be repeated.",
            show_default=False,
        ),
    ],
    json: Json = False,
) -> None:
    """Log a job to an experiment tracker, one run per agent, until the job ends. Repeat the command
    to continue."""
    from podracer_client.loggers import Logger, follow, open_logger

    with server.read() as client, ExitStack() as opened:
        job = client.job(name)
        loggers: list[Logger] = []
        for target in to:
            loggers.append(open_logger(target, job.message))
            opened.callback(loggers[-1].close)
        before = [logger.position for logger in loggers]
        count = follow(client, job, loggers)
    kinds = [target.partition(":")[0] for target in to]  # a URI may hold a password
    for kind, had in zip(kinds, before, strict=True):
        if json:
            write_json(
                {
                    "event": "logged",
                    "job": job.name,
                    "to": kind,
                    "evaluations": count,
                    "new": count - had,
                }
            )
        else:
            sys.stdout.write(
                f"{short_name(job.name)}: {count:,} evaluations in {kind}, {count - had:,} of them "
                "new\n"
            )


@with_server
def push(
    server: ServerOptions,
    policy: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|JOB",
            help="A checkpoint's folder or name, or a job (for its best policy).",
            show_default=False,
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="hf://OWNER/REPO|mlflow:MODEL_NAME@URI",
            show_default=False,
            help="The destination.",
        ),
    ],
    video: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A video of the policy.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    json: Json = False,
) -> None:
    """Upload a policy with a model card: checkpoint, curves, job, versions and metrics."""
    from podracer_client.sharing import check_destination, push

    check_destination(destination)

    from podracer_client.policies import is_there, policy_folders
    from podracer_client.sharing import write_share

    with tempfile.TemporaryDirectory(prefix="podracer-push-") as folder, ExitStack() as held:
        (checkpoint,) = held.enter_context(
            policy_folders([policy], 0, server.connect, server.folder)
        )
        is_job = is_job_name(policy) and not is_there(policy)
        client = held.enter_context(server.read()) if is_job else None
        metrics = write_share(Path(folder), checkpoint, client, policy, video)
        made = push(Path(folder), destination, metrics, public=public)
    if json:
        write_json({"event": "pushed", "to": made, **metrics})
    else:
        sys.stdout.write(f"pushed {made}\n")
