"""The commands put together, with those of installed packages: entry points in
`podracer.commands`."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from podracer_client.command import (
    catalogue,
    job_files,
    jobs,
    leaderboard,
    policies,
    report,
    run,
    secrets,
    server,
)
from podracer_core.catalogue import package_of
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

GROUP = "podracer.commands"
"""A package adds a command with an entry point, its name = "its_package.commands:greet": a function
with typer's annotations, a `typer.Typer` with commands of its own, or a `PlacedCommand`. Its module
is imported to list the commands, so that what is heavy is imported when the command runs."""

HERE = "On this machine"
SERVER = "With a server (`podracer up` and `podracer run` start one on this machine)"
POLICIES = "Policies"
_PANEL = "Of installed packages"
"""Titles in the help."""


@dataclass(frozen=True, slots=True)
class PlacedCommand:
    """A command, and where the help lists it.

    panel   the title
    after   the command that it follows; empty: it comes last
    """

    command: Callable[..., Any] | typer.Typer
    panel: str = _PANEL
    after: str = ""


class PluginGroup(TyperGroup):
    """Commands, to which those of packages are added once all are listed, or an unknown one is
    called: finding them takes longer than everything else before a command runs."""

    _commands: MutableMapping[str, Any]
    _is_complete = False

    @property
    def commands(self) -> MutableMapping[str, Any]:
        """All by name."""
        if not self._is_complete:
            self._is_complete = True
            for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
                self._add(entry)
        return self._commands

    @commands.setter
    def commands(self, commands: MutableMapping[str, Any]) -> None:
        self._commands = commands

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        return self._commands.get(cmd_name) or self.commands.get(cmd_name)

    def _add(self, entry: EntryPoint) -> None:
        start = f"podracer: command {entry.name!r} of package {package_of(entry)}"
        if entry.name in self._commands:
            sys.stderr.write(f"{start} is left out: there is one of that name\n")
            return
        try:
            found = entry.load()
            placed = found if isinstance(found, PlacedCommand) else PlacedCommand(found)
            command = _made(entry.name, placed)
        except Exception as error:  # noqa: BLE001 - what a package does when it is imported
            sys.stderr.write(f"{start} is left out: {type(error).__name__}: {error}\n")
            return
        names = list(self._commands)
        place = names.index(placed.after) + 1 if placed.after in names else len(names)
        items = list(self._commands.items())
        self._commands = dict([*items[:place], (entry.name, command), *items[place:]])


def _made(name: str, placed: PlacedCommand) -> Any:
    """The command as typer runs it."""
    application = typer.Typer()
    if isinstance(placed.command, typer.Typer):
        application.add_typer(placed.command, name=name, rich_help_panel=placed.panel)
    else:
        application.command(name, rich_help_panel=placed.panel)(placed.command)
    return typer.main.get_group(application).commands[name]


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
        from podracer_platform.service import describe_build

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
        *(job_files.init, run.run, run.demo, run.doctor, run.up),
        *(catalogue.algorithms, catalogue.environments, secrets.secrets),
        report.trace,
    ),
    SERVER: (
        *(jobs.submit, jobs.jobs, jobs.job, jobs.watch, jobs.scale),
        *(server.capacity, server.gc, jobs.cancel, jobs.delete),
        *(leaderboard.leaderboard, leaderboard.promote),
        *(leaderboard.rollback, leaderboard.history, report.report, report.web, report.log),
    ),
    POLICIES: (
        *(policies.evaluate, policies.video, policies.export),
        *(policies.push, policies.serve),
    ),
}
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        application.command(rich_help_panel=_panel)(_command)
for _name, _group, _panel in (
    ("agent", jobs.agent_application, SERVER),
    ("context", server.application, HERE),
    ("token", secrets.tokens, HERE),
    ("zoo", job_files.zoo_application, HERE),
):
    application.add_typer(_group, name=_name, rich_help_panel=_panel)


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
