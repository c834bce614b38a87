"""`podracer rollback`."""

from __future__ import annotations

from podracer_client.command.history import show_promotion
from podracer_client.command.options import JobName, Json, ServerOptions, with_server
from podracer_client.command.promote import AliasName, Reason


@with_server
def rollback(
    server: ServerOptions, job: JobName, alias: AliasName = "", reason: Reason = "", json: Json = False
) -> None:
    """Point an alias back at the policy before; once more, at the one before that."""
    with server.connect() as client:
        show_promotion(client.roll_back(job, alias=alias, reason=reason), json=json)
