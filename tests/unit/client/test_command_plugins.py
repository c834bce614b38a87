"""Commands of installed packages."""

from __future__ import annotations

import sys

import pytest
from typer.main import get_command

from podracer_client.command import GROUP, application
from support.commands import run_here
from support.installed import Install, install

__all__ = ["install"]

COMMANDS = '''
import typer

from podracer_client.command import POLICIES, PlacedCommand


def greet(name: str) -> None:
    """Greet a person."""
    typer.echo(f"hello, {name}")


FAREWELL = PlacedCommand(greet, POLICIES, after="evaluate")
group = typer.Typer(help="Several greetings.", no_args_is_help=True)
group.command()(greet)
group.command("farewell")(greet)
'''


@pytest.fixture
def installed(install: Install) -> None:
    entries = {
        "greet": "my_package.commands:greet",
        "farewell": "my_package.commands:FAREWELL",
        "greetings": "my_package.commands:group",
        "absent": "my_package.absent:command",
        "run": "my_package.commands:greet",
    }
    install("my-package", entries, group=GROUP, commands=COMMANDS)


@pytest.mark.usefixtures("installed")
def test_a_command_is_a_function_or_a_group(tmp_path):
    assert run_here("greet", "world", cwd=tmp_path).stdout == "hello, world\n"
    assert run_here("greetings", "farewell", "you", cwd=tmp_path).stdout == "hello, you\n"
    assert "Greet a person." in run_here("greet", "--help", cwd=tmp_path).stdout


@pytest.mark.usefixtures("installed")
def test_help_lists_commands_where_they_belong(tmp_path):
    result = run_here("--help", cwd=tmp_path)
    assert "Of installed packages" in result.stdout
    names = list(get_command(application).commands)  # type: ignore[attr-defined]
    assert names[names.index("evaluate") + 1] == "farewell"
    assert {"greet", "greetings"} <= set(names)
    start = "podracer: command {!r} of package my-package 1.2 is left out: "
    assert result.stderr.splitlines() == [
        f"{start.format('absent')}ModuleNotFoundError: No module named 'my_package.absent'",
        f"{start.format('run')}there is one of that name",
    ]


@pytest.mark.usefixtures("installed")
def test_a_command_of_ours_looks_for_no_packages(tmp_path):
    result = run_here("algorithms", "ppo", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "my_package.commands" not in sys.modules
