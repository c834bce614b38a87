"""`podracer cancel`."""

from __future__ import annotations

import sys

from podracer_client.command.options import JobName, ServerOptions, with_server


@with_server
def cancel(server: ServerOptions, job: JobName) -> None:
    """End a job; what it has reached stays."""
    with server.connect() as client:
        cancelled = client.job(job).cancel()
    sys.stdout.write(f"{cancelled.name}: {cancelled.state}\n")
