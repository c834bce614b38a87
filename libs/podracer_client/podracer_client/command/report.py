"""A job shown elsewhere: `podracer report`, as a page; `trace`, its time, for Perfetto; `web`, live
in a browser; `log`, in an experiment tracker."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import (
    FiguresFolder,
    JobName,
    Json,
    ServerOptions,
    StateFolderOption,
    with_server,
)
from podracer_client.display import write_json
from podracer_client.files import require_writable, write_whole
from podracer_client.names import best_checkpoint_name, short_name
from podracer_core.errors import NotFound, PodracerError, PreconditionFailed

if TYPE_CHECKING:
    from podracer_client.jobs import Client


@with_server
def report(
    server: ServerOptions,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The job's id or name, or an experiment's.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT.html", help="The page to write.", show_default="NAME-report.html"
        ),
    ] = None,
    figures: FiguresFolder = None,
    experiment: Annotated[
        bool,
        typer.Option(
            "--experiment",
            help="Compare the jobs of the experiment, even if a job has the same name.",
        ),
    ] = False,
    video: Annotated[
        bool,
        typer.Option("--video/--no-video", help="Add a video of the champion to a job's page."),
    ] = True,
    json: Json = False,
) -> None:
    """Write an HTML page about a job or an experiment. Needs no running server for a state
    folder."""
    output = output or Path(f"{short_name(name)}-report.html")
    require_writable(output)

    from podracer_client.jobs import History

    # after the check: matplotlib takes a second
    from podracer_client.report import make_report

    with server.read() as client:
        made = make_report(client, name, experiment=experiment)
        if (
            video
            and isinstance(made.subject, History)
            and (made.subject.candidates or made.subject.standing)
        ):
            made = replace(made, video=_filmed(client, name, server.folder))
    written = made.write(output, figures)
    if json:
        write_json(
            {
                "event": "report",
                "path": str(output),
                "figures": [str(path) for path in written],
                **made.facts,
            }
        )
        return
    sys.stdout.write(made.text)
    sys.stdout.write(
        f"wrote {output}{f' and {len(written)} files in {figures}' if figures else ''}\n"
    )


def _filmed(client: Client, name: str, folder: Path | None) -> tuple[str, str]:
    """The URL of a video of the job's champion and its caption, or none and the reason."""
    from podracer_client.policies import film

    sys.stderr.write("filming the champion; --no-video skips this\n")
    try:
        return film(best_checkpoint_name(client.full_name(name)), client, folder)
    except PodracerError as error:
        reason = f"no video: {error.message}"
        sys.stderr.write(f"podracer: {reason}\n")
        return "", reason


def trace(
    name: JobName,
    output: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT.json", help="The file to write.", show_default="JOB-trace.json"
        ),
    ] = None,
    folder: StateFolderOption = Path("runs"),
    traces: Annotated[
        Path | None,
        typer.Option(
            "--traces",
            metavar="DIR",
            help="Folder with the span files.",
            show_default="that of --dir",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show where a job's time went, from its creation to the gradient steps, and write it for
    https://ui.perfetto.dev."""
    from podracer_client.local import StateFolder
    from podracer_client.traces import chrome_trace, flame_of, flame_text, read_trace

    output = output or Path(f"{short_name(name)}-trace.json")
    require_writable(output)
    place = traces or StateFolder.traces_of(folder)
    try:
        found = read_trace(place, name)
    except NotFound as error:  # no id, but maybe the name in a job's file
        try:
            job = ServerOptions(folder).full_job_name(name)
        except (NotFound, PreconditionFailed):
            raise error from None
        found = read_trace(place, job)
    flame = flame_of(found)
    write_whole(output, dumps(chrome_trace(found), separators=(",", ":")).encode())
    if json:
        figures = {
            "seconds": found.seconds,
            "work_seconds": flame.seconds,
            "spans": len(found.spans),
        }
        write_json({"event": "trace", "job": found.job, "path": str(output), **figures})
        return
    sys.stdout.write(flame_text(found, flame))
    sys.stdout.write(f"wrote {output}\n")


@with_server
def web(
    server: ServerOptions,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address that the page listens on. Beyond loopback, --key-file is required.",
        ),
    ] = "127.0.0.1:0",
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the page's key, instead of a key in the URL.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PORT]", help="A further host name of the page; may be repeated."
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
    view: Annotated[
        str, typer.Option(metavar="PATH", help="The first view, as after # in the page's links.")
    ] = "",
) -> None:
    """Serve a live web page until Ctrl-C: curves, lineage, pods, leaderboard, and actions on jobs.

    Needs no running server for a state folder.
    """
    from podracer_client.processes import INTERRUPTED, Interrupts
    from podracer_client.web import serve_page

    stop = threading.Event()
    with (
        Interrupts(stop.set, lambda: os._exit(INTERRUPTED)),
        server.read() as client,
        serve_page(
            server.connect,
            client,
            listen=listen,
            key_file=key_file,
            hosts=host or (),
            state_folder=server.folder,
        ) as url,
    ):
        if view:
            url += f"{'&to=' if '#' in url else '#'}{view}"
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        if open_browser:
            typer.launch(url)
        stop.wait()
    raise typer.Exit(INTERRUPTED)


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
