"""`podracer delete`."""

from __future__ import annotations

import sys

from podracer_client.command.options import JobName, ServerOptions, with_server


@with_server
def delete(server: ServerOptions, job: JobName) -> None:
    """Delete an ended job with its leaderboard and checkpoints; a continuous one with its generations."""
    with server.connect() as client:
        found = client.job(job)
        found.delete()
    sys.stdout.write(f"deleted {found.name}\n")
