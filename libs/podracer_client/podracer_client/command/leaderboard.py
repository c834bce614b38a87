"""`podracer leaderboard`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import JobName, Json, ServerOptions, with_server

if TYPE_CHECKING:
    from podracer.leaderboard.v1 import leaderboard_service_pb2


@with_server
def leaderboard(
    server: ServerOptions,
    job: JobName,
    watch: Annotated[bool, typer.Option("--watch", help="Print it again whenever it changes.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show every hyperparameter, not only those that differ or are unusual.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the ranked agents of a job, best first; of a state folder also when nothing runs there."""
    from podracer_client.names import leaderboard_name

    name = leaderboard_name(job)
    with server.connect() if watch else server.read(only_leaderboard=True) as client:
        _show(client.leaderboard(name), every=every, json=json)
        if watch:
            for board in client.watch_leaderboard(name):
                _show(board, every=every, json=json)


def _show(board: leaderboard_service_pb2.Leaderboard, *, every: bool, json: bool) -> None:
    from podracer_client.display.leaderboard import leaderboard_text
    from podracer_client.display.messages import candidate_json, write_json

    if json:
        for candidate in board.candidates:
            write_json(candidate_json(candidate, board.spec.objective))
    else:
        sys.stdout.write(leaderboard_text(board, every=every))
        sys.stdout.flush()
