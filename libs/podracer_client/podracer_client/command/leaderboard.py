"""`podracer leaderboard`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import JobName, Json, ServerOptions, with_server
from podracer_core.errors import NotFound

if TYPE_CHECKING:
    from podracer.leaderboard.v1 import leaderboard_service_pb2
    from podracer_client.client import Client


@with_server
def leaderboard(
    server: ServerOptions,
    job: JobName,
    watch: Annotated[bool, typer.Option("--watch", help="Print it again whenever it changes.")] = False,
    json: Json = False,
) -> None:
    """Show the ranked agents of a job, best first; of a state folder also when nothing runs there."""
    from podracer_client.names import leaderboard_name

    name = leaderboard_name(job)
    with _client(server) as client:
        _show(client.leaderboard(name), json=json)
        if watch:
            for board in client.watch_leaderboard(name):
                _show(board, json=json)


def _client(server: ServerOptions) -> AbstractContextManager[Client]:
    """Of the server that runs, or of a state folder where nothing does."""
    from podracer_client.connection import DEFAULT_FOLDER
    from podracer_client.local.reading import has_leaderboard, resting_leaderboard

    folder = server.folder or DEFAULT_FOLDER
    try:
        return server.connect()
    except NotFound:
        if not has_leaderboard(folder):
            raise
    return resting_leaderboard(folder)


def _show(board: leaderboard_service_pb2.Leaderboard, *, json: bool) -> None:
    from podracer_client.command.messages import candidate_json, write_json

    if json:
        for candidate in board.candidates:
            write_json(candidate_json(candidate))
    else:
        sys.stdout.write(leaderboard_text(board))
        sys.stdout.flush()


def leaderboard_text(board: leaderboard_service_pb2.Leaderboard) -> str:
    """The ranking as a table."""
    from podracer_client.display.listing import columns
    from podracer_client.display.numbers import count_text, return_text, seconds
    from podracer_client.names import short_name

    if not board.candidates:
        return f"{board.name}: nobody is ranked yet; {board.agent_count} agents so far\n"
    rows = []
    for candidate in board.candidates:
        evaluation, agent = candidate.evaluation, candidate.agent
        rows.append(
            (
                str(candidate.rank),
                short_name(agent.name),
                agent.spec.algorithm,
                return_text(evaluation.mean),
                f"{return_text(evaluation.lower_bound)} to {return_text(evaluation.upper_bound)}",
                str(len(evaluation.returns)),
                count_text(evaluation.env_steps),
                f"{seconds(agent.cost):.1f}",
                " ".join(short_name(parent) for parent in agent.parents),
            )
        )
    titles = ("rank", "agent", "algorithm", "mean", "95 % interval", "episodes", "steps", "device s", "from")
    return columns(titles, rows, right=("rank", "mean", "95 % interval", "episodes", "steps", "device s")) + "\n"
