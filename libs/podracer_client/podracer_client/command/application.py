"""The commands put together."""

from __future__ import annotations

from typing import Annotated

import typer

from podracer_client.command import (
    agent,
    algorithms,
    context,
    doctor,
    environments,
    init,
    jobs,
    leaderboard,
    policies,
    pool,
    report,
    run,
    secrets,
    sharing,
    submit,
    web,
    zoo,
)
from podracer_client.command.plugins import HERE, POLICIES, SERVER, PluginGroup
from podracer_core.errors import (
    AlreadyExists,
    Fenced,
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    PreconditionFailed,
    Unauthenticated,
    Unavailable,
    UserCodeFailed,
)

_BAD_INPUT = (
    InvalidInput,
    NotFound,
    AlreadyExists,
    PreconditionFailed,
    Unauthenticated,
    PermissionRefused,
)

application = typer.Typer(
    name="podracer",
    cls=PluginGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from podracer_platform.service.build import describe_build

        typer.echo(f"podracer {describe_build()}")
        raise typer.Exit


@application.callback()
def podracer(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train deep-reinforcement-learning agents as a tournament of pods, on this machine or on a
    server."""


_COMMANDS = {
    HERE: (
        *(
            init.init,
            run.run,
            run.demo,
            doctor.doctor,
            run.up,
            algorithms.algorithms,
            environments.environments,
        ),
        secrets.secrets,
        report.trace,
    ),
    SERVER: (
        *(
            submit.submit,
            jobs.jobs,
            jobs.job,
            submit.watch,
            jobs.scale,
            pool.capacity,
            pool.gc,
            jobs.cancel,
        ),
        *(
            jobs.delete,
            leaderboard.leaderboard,
            leaderboard.promote,
            leaderboard.rollback,
            leaderboard.history,
        ),
        *(report.report, web.web, sharing.log),
    ),
    POLICIES: (
        *(policies.evaluate, policies.video, policies.export),
        *(sharing.push, policies.serve),
    ),
}
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        application.command(rich_help_panel=_panel)(_command)
application.add_typer(agent.application, name="agent", rich_help_panel=SERVER)
application.add_typer(context.application, name="context", rich_help_panel=HERE)
application.add_typer(secrets.tokens, name="token", rich_help_panel=HERE)
application.add_typer(zoo.application, name="zoo", rich_help_panel=HERE)


def exit_code(error: PodracerError) -> int:
    """2 for what the user can put right in the command or its files, 1 for the rest."""
    return 2 if isinstance(error, _BAD_INPUT) and not isinstance(error, Fenced) else 1


def failure_text(error: PodracerError) -> str:
    """The message, a line for each bad field that it does not name already, and the user's own
    traceback."""
    lines = [f"podracer: {error.message}"]
    if isinstance(error, InvalidInput):
        lines += [
            f"  {violation}"
            for violation in error.violations
            if violation.message not in error.message
        ]
    if isinstance(error, Unavailable) and error.reason == Unavailable.reason:
        lines.append(
            "  is it running (`podracer up` starts one on this machine)? Does it speak TLS (--tls)?"
        )
    if isinstance(error, UserCodeFailed) and error.user_traceback:
        lines += ["", error.user_traceback.rstrip()]
    return "\n".join(lines) + "\n"
