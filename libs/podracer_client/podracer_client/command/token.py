"""`podracer token`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def token(
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the token files.", show_default="$PODRACER_TOKENS"),
    ] = None,
) -> None:
    """Print a client's token: for PODRACER_TOKEN_FILE, or for the metadata `authorization: Bearer TOKEN` of a call."""
    import os

    from podracer_core.errors import InvalidInput
    from podracer_core.rpc.tokens import FileToken

    folder = tokens or (Path(os.environ["PODRACER_TOKENS"]) if os.environ.get("PODRACER_TOKENS") else None)
    if folder is None:
        raise InvalidInput("which tokens? Give --tokens DIR, or set PODRACER_TOKENS", reason="NO_TOKENS")
    sys.stdout.write(f"{FileToken(folder / 'client')()}\n")
