"""`podracer serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from podracer_client.command.options import EnsembleRule, EnsembleSize, ServerOptions, with_server


@with_server
def serve(
    server: ServerOptions,
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]POLICY",
            help="A checkpoint's folder, its name on a server, a job (its best policy), or JOB@ALIAS: what the alias "
            "of the job's leaderboard points at, exchanged when it is moved. Policies of one NAME act together, the "
            "best first.",
            show_default=False,
        ),
    ],
    ensemble: EnsembleSize = 0,
    rule: EnsembleRule = "",
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Where the policy server listens.")] = "127.0.0.1:7710",
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the tokens that it accepts; made where missing.",
            show_default="runs/tokens",
        ),
    ] = None,
    follow_interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look where an alias points.")
    ] = 5.0,
) -> None:
    """Act with policies for whoever asks, until Ctrl-C: one small server, many policies."""
    from podracer_client.policies.serve import ServeOptions, keep_serving
    from podracer_client.servers.connection import DEFAULT_FOLDER

    folder = tokens or (server.folder or DEFAULT_FOLDER) / "tokens"
    options = ServeOptions(listen, folder.absolute(), rule, follow_interval, server.tls, server.insecure)
    raise typer.Exit(keep_serving(policies, ensemble, options, server.connect, server.folder))
