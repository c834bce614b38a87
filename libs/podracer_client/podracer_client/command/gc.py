"""`podracer gc`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import Json, ServerOptions, with_server

if TYPE_CHECKING:
    from podracer.orchestrator.v1 import job_service_pb2


@with_server
def gc(
    server: ServerOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    json: Json = False,
) -> None:
    """Delete the checkpoints that nothing needs any more, of all jobs.

    What is on a leaderboard, an alias's, an agent's newest or best, or in use stays, and so does whatever is younger
    than an hour. The server does this by itself now and then.
    """
    from podracer_client.display.messages import write_json

    with server.connect() as client:
        found = client.collect_checkpoints(dry_run=dry_run)
    if json:
        prefixes = list(found.prefixes)
        write_json({"checkpoints": found.checkpoint_count, "size_bytes": found.size_bytes, "prefixes": prefixes})
    else:
        sys.stdout.write(gc_text(found, dry_run=dry_run))


def gc_text(found: job_service_pb2.CollectCheckpointsResponse, *, dry_run: bool) -> str:
    """One line."""
    if not found.checkpoint_count:
        return "nothing to delete\n"
    what = "checkpoint" if found.checkpoint_count == 1 else "checkpoints"
    would = "would be deleted" if dry_run else "deleted"
    return f"{found.checkpoint_count} {what} {would}, {found.size_bytes / 2**20:,.1f} MiB\n"
