"""`podracer report`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from podracer_client.command.options import Json, ServerOptions, with_server
from podracer_client.files import require_writable


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
    """Write one HTML page about a job, or about the jobs of an experiment; of a state folder also when nothing runs."""
    from podracer_client.names import short_name

    output = output or Path(f"{short_name(name)}-report.html")
    require_writable(output)

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # that it builds a cache of fonts is no news
    from podracer_client.report.making import make_report

    with server.read() as client:
        made = make_report(client, name, experiment=experiment)
    written = made.write(output, figures)
    if json:
        from podracer_client.display.messages import write_json

        write_json({"event": "report", "path": str(output), "figures": [str(path) for path in written], **made.facts})
        return
    sys.stdout.write(made.text)
    sys.stdout.write(f"wrote {output}{f' and {len(written)} files in {figures}' if figures else ''}\n")
