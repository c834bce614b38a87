"""`podracer promote`."""

from __future__ import annotations

from typing import Annotated

import typer

from podracer_client.command.history import show_promotion
from podracer_client.command.options import JobName, Json, ServerOptions, with_server

AliasName = Annotated[
    str, typer.Option("--as", metavar="ALIAS", help="The alias.", show_default="champion, or what the job calls it")
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the history.")]


@with_server
def promote(
    server: ServerOptions,
    job: JobName,
    policy: Annotated[
        str,
        typer.Option(
            "--agent",
            metavar="AGENT|CHECKPOINT",
            help="An agent's id or name, or the name of a checkpoint.",
            show_default="the best; of a continuous job that of its newest generation",
        ),
    ] = "",
    alias: AliasName = "",
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Point an alias of a job's leaderboard at a policy; whoever serves the alias follows."""
    with server.connect() as client:
        show_promotion(client.promote(job, policy, alias=alias, reason=reason), json=json)
