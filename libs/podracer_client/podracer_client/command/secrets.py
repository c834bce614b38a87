"""`podracer secrets`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def secrets(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are to lie.", show_default=False)],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host's name or address that the certificates are to bear as well."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, metavar="N", help="How long the certificates are valid.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Make the certificates anew, by the same authority.")] = False,
) -> None:
    """Make the tokens, certificates and keys of a deployment, as far as they are missing; DIR/roles/ROLE has what each
    role is given."""
    from podracer_client.deployment_secrets import create_secrets

    written = create_secrets(folder, host or (), days, renew=renew)
    sys.stdout.write("".join(f"{path}\n" for path in written) or f"nothing is missing below {folder}\n")
