"""`podracer scale`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from podracer_client.command.options import JobName, ServerOptions, with_server

_TEAMS = ", or teams where an agent has several learners"


@with_server
def scale(
    server: ServerOptions,
    job: JobName,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", help=f"Pods at most{_TEAMS}.", show_default="as it is")
    ] = None,
    least: Annotated[
        int | None, typer.Option("--min", metavar="N", help=f"Pods at least{_TEAMS}.", show_default="as it is")
    ] = None,
) -> None:
    """Change how many pods may work for a job, also while it runs: pods join, or end their update and leave."""
    if most is None and least is None:
        raise typer.BadParameter("say how many pods: --max N, --min N, or both", param_hint="--max / --min")
    with server.connect() as client:
        scaled = client.job(job).scale(least=least, most=most)
    count = scaled.message.spec.pod
    sys.stdout.write(f"{scaled.name}: {count_text(count.min_count, count.max_count, count.learners)}\n")


def count_text(least: int, most: int, learners: int) -> str:
    """`pod.count` in words; with several learners it is one of teams."""
    number = str(most) if least == most else f"{least} to {most}"
    if learners > 1:
        return f"{number} {'team' if most == 1 else 'teams'} of {learners} pods"
    return f"{number} {'pod' if most == 1 else 'pods'}"
