"""`podracer doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from podracer_client.command.options import Json, StateFolderOption
from podracer_client.display import write_json, write_table


def doctor(
    folder: StateFolderOption = Path("runs"),
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Check this object store too (a URL as in PODRACER_STORE).",
            envvar="PODRACER_STORE",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Check what this machine has and lacks. Exits with 1 if something required is missing."""
    from podracer_client.local import examine

    findings = examine(folder, store)
    if json:
        for each in findings:
            advice = each.advice if each.state != "ok" else ""
            write_json(
                {
                    "name": each.name,
                    "state": each.state,
                    "found": each.found or None,
                    "advice": advice or None,
                }
            )
    else:
        rows = [
            (each.name, each.state, each.found if each.state == "ok" else each.advice)
            for each in findings
        ]
        write_table(("what", "state", "found, or what to do"), rows)
    if any(each.state == "missing" for each in findings):
        raise typer.Exit(1)
