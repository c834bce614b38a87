"""`podracer trace`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from podracer_client.command.options import JobName, Json, StateFolderOption
from podracer_client.files import require_writable


def trace(
    name: JobName,
    output: Annotated[
        Path | None,
        typer.Argument(metavar="OUT.html", help="The page to write.", show_default="JOB-trace.html"),
    ] = None,
    folder: StateFolderOption = Path("runs"),
    traces: Annotated[
        Path | None,
        typer.Option(
            "--traces", metavar="DIR", help="The folder with the files of spans.", show_default="that of --dir"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show where the time of a job went, from its creation to gradient steps, and write that as one HTML page."""
    from podracer_client.files import write_whole
    from podracer_client.local.state_folder import StateFolder
    from podracer_client.names import short_name
    from podracer_client.traces.flame import flame_of, flame_text
    from podracer_client.traces.page import trace_page
    from podracer_client.traces.reading import read_trace

    output = output or Path(f"{short_name(name)}-trace.html")
    require_writable(output)
    found = read_trace(traces or StateFolder.traces_of(folder), name)
    flame = flame_of(found)
    write_whole(output, trace_page(found, flame).encode())
    if json:
        from podracer_client.display.messages import write_json

        figures = {"seconds": found.seconds, "work_seconds": flame.seconds, "spans": len(found.spans)}
        write_json({"event": "trace", "job": found.job, "path": str(output), **figures})
        return
    sys.stdout.write(flame_text(found, flame))
    sys.stdout.write(f"wrote {output}\n")
