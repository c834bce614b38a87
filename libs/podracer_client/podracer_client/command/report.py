"""`podracer report`."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import Json, ServerOptions, with_server
from podracer_core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from podracer_client.client import Client


@with_server
def report(
    server: ServerOptions,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The job's id or name, or an experiment's.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Argument(metavar="OUT.html", help="The page to write.", show_default="NAME-report.html"),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Write every figure as SVG and PNG too.", show_default=False),
    ] = None,
    experiment: Annotated[
        bool, typer.Option("--experiment", help="Compare the jobs of the experiment, also where a job has its name.")
    ] = False,
    json: Json = False,
) -> None:
    """Write one HTML page about a job, or about the jobs of an experiment; of a state folder also at rest."""
    from podracer_client.names import short_name

    output = output or Path(f"{short_name(name)}-report.html")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InvalidInput(f"cannot write {output}: expected a file in a folder that is there", path=output)

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # that it builds a cache of fonts is no news
    from podracer_client.report.making import make_report

    with _client(server) as client:
        made = make_report(client, name, experiment=experiment)
    written = made.write(output, figures)
    if json:
        from podracer_client.command.messages import write_json

        write_json({"event": "report", "path": str(output), "figures": [str(path) for path in written], **made.facts})
        return
    sys.stdout.write(made.text)
    sys.stdout.write(f"wrote {output}{f' and {len(written)} files in {figures}' if figures else ''}\n")


def _client(server: ServerOptions) -> AbstractContextManager[Client]:
    """Of the servers that run, or of a state folder where nothing does."""
    from podracer_client.connection import DEFAULT_FOLDER
    from podracer_client.local.reading import has_jobs, resting_services

    folder = server.folder or DEFAULT_FOLDER
    try:
        return server.connect()
    except NotFound:
        if not has_jobs(folder):
            raise
    return resting_services(folder)
