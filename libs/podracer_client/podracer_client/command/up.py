"""`podracer up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from podracer_client.command.options import MaxPods, StateFolderOption


def up(
    folder: StateFolderOption = Path("runs"),
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Where the orchestrator listens.")] = "127.0.0.1:7700",
    leaderboard_listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the leaderboard listens.")
    ] = "127.0.0.1:7701",
    max_pods: MaxPods = 0,
) -> None:
    """Keep the services running on this machine until Ctrl-C, for jobs that come by `podracer submit`."""
    from podracer_client.local.services import ServiceOptions
    from podracer_client.local.up import keep_up

    raise typer.Exit(keep_up(folder, ServiceOptions(listen, leaderboard_listen, max_pods)))
