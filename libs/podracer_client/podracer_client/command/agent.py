"""`podracer agent`: what can be done to the agents of a running job."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from podracer_client.command.options import JobName, ServerOptions, with_server
from podracer_client.names import short_name

application = typer.Typer(
    no_args_is_help=True, help="Act on an agent of a running job: fork, pin or stop it."
)

AgentName = Annotated[
    str, typer.Argument(metavar="AGENT", help="The agent's id or name.", show_default=False)
]


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
            help="A hyperparameter to change, within the algorithm's bounds; may be repeated.",
        ),
    ] = None,
) -> None:
    """Make a new agent from an agent's weights, with changed hyperparameters. The new agent is
    trained next."""
    from podracer_client.policies import parsed_arguments

    hyperparameters = parsed_arguments(settings or (), "a hyperparameter")
    with server.connect() as client:
        made = client.job(job).fork_agent(agent, hyperparameters)
    name = (
        short_name(made)
        if made
        else "the leaderboard is unreachable; the job's events will name the new agent"
    )
    sys.stdout.write(f"forked {short_name(agent)}: {name}\n")


@application.command()
@with_server
def pin(server: ServerOptions, job: JobName, agent: AgentName) -> None:
    """Protect an agent from being replaced."""
    with server.connect() as client:
        client.job(job).pin_agent(agent)
    sys.stdout.write(f"pinned {short_name(agent)}\n")


@application.command()
@with_server
def unpin(server: ServerOptions, job: JobName, agent: AgentName) -> None:
    """Allow an agent to be replaced again."""
    with server.connect() as client:
        client.job(job).unpin_agent(agent)
    sys.stdout.write(f"unpinned {short_name(agent)}\n")


@application.command()
@with_server
def stop(server: ServerOptions, job: JobName, agent: AgentName) -> None:
    """Stop training an agent at the end of its round. Its checkpoints and results stay."""
    with server.connect() as client:
        client.job(job).stop_agent(agent)
    sys.stdout.write(f"stopped {short_name(agent)}\n")
