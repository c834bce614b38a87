"""Commands of installed packages: entry points in `podracer.commands`."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from podracer_core.catalogue import package_of

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
