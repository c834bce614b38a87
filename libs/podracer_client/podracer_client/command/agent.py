"""`podracer agent`: what can be done to the agents of a running job."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from podracer_client.command.options import JobName, ServerOptions, with_server
from podracer_client.names import short_name

application = typer.Typer(no_args_is_help=True, help="Act on an agent of a running job: fork, pin or stop it.")

AgentName = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id or name.", show_default=False)]


@application.command()
@with_server
def fork(
    server: ServerOptions,
    job: JobName,
    agent: AgentName,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another hyperparameter than the agent's, inside the algorithm's bounds; any number of them.",
        ),
    ] = None,
) -> None:
    """Make a new agent from an agent's weights, with other hyperparameters; it is trained next, beside the others."""
    from podracer_client.policies.environment import parsed_arguments

    hyperparameters = parsed_arguments(settings or (), "a hyperparameter")
    with server.connect() as client:
        made = client.job(job).fork_agent(agent, hyperparameters)
    name = short_name(made) if made else "its name is told in the job's events: the leaderboard is away"
    sys.stdout.write(f"forked {short_name(agent)}: {name}\n")


@application.command()
@with_server
def pin(server: ServerOptions, job: JobName, agent: AgentName) -> None:
    """Have no other agent take its place until it is unpinned."""
    with server.connect() as client:
        client.job(job).pin_agent(agent)
    sys.stdout.write(f"pinned {short_name(agent)}\n")


@application.command()
@with_server
def unpin(server: ServerOptions, job: JobName, agent: AgentName) -> None:
    """Let others take its place again."""
    with server.connect() as client:
        client.job(job).unpin_agent(agent)
    sys.stdout.write(f"unpinned {short_name(agent)}\n")


@application.command()
@with_server
def stop(server: ServerOptions, job: JobName, agent: AgentName) -> None:
    """Train it no more once its round has ended; its checkpoints and results stay."""
    with server.connect() as client:
        client.job(job).stop_agent(agent)
    sys.stdout.write(f"stopped {short_name(agent)}\n")
