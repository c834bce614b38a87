"""What the commands print: their help, and what they show of the catalogues and of a stored job."""

from __future__ import annotations

import html
import json
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from podracer_client.command import application
from podracer_client.local import resting_services
from support.commands import run_here
from support.golden import STATE, check_golden, pretty
from support.processes import EXAMPLES

pytestmark = pytest.mark.xdist_group("golden")
WIDTH = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
IN_SHORT = {
    r"\bpodracer_\w+(\.\w+)*:": "MODULE:",
    r"[0-9a-f]{64}": "HASH",
    r'"job_file": "[^"]*/': '"job_file": "',
}
"""What may change: where a class or a file is; the bytes of a Parquet file."""


Tree = dict[tuple[str, ...], click.Command]


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Tree:
    """Every command and group, by its words."""
    found = {path: command}
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            found |= commands(inner, (*path, name))
    return found


class Transcript:
    """Commands and what they print; JSON values one a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: list[str] = []

    def run(self, *arguments: object, hidden: tuple[object, ...] = ()) -> str:
        """Run a command to its end; returns what it printed. `hidden` arguments are not shown."""
        result = run_here(*arguments, *hidden, cwd=self.folder, **WIDTH)
        printed = click.unstyle(result.stdout + result.stderr).replace(str(self.folder), "FOLDER")
        shown = printed
        if "--json" in arguments and result.returncode == 0:
            shown = "".join(f"{pretty(json.loads(line))}\n" for line in printed.splitlines())
        for pattern, word in IN_SHORT.items():
            shown = re.sub(pattern, word, shown)
        code = f"exit code {result.returncode}\n" if result.returncode else ""
        lines = [
            line.rstrip()
            for line in f"$ podracer {' '.join(map(str, arguments))}\n{shown}{code}".splitlines()
        ]
        self.parts.append("\n".join(lines) + "\n")
        return printed

    def check(self, name: str) -> None:
        check_golden(name, "\n".join(self.parts))


@pytest.fixture(scope="module")
def tree() -> Tree:
    """All commands; where a docstring is wrapped does not matter."""
    tree = commands(get_command(application))
    for command in tree.values():
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
    return tree


@pytest.fixture
def transcript(tmp_path: Path, tree: Tree) -> Iterator[Transcript]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "typer.main.get_command", lambda _: tree[()]
        )  # made once, not for every command
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield Transcript(tmp_path)
    time.tzset()


def test_help(transcript, tree):
    for path in tree:
        transcript.run(*path, "--help")
    transcript.check("help.txt")


def test_catalogues(transcript):
    for what, key in (("algorithms", "name"), ("environments", "id")):
        transcript.run(what)
        listed = transcript.run(what, "--json")
        names = [json.loads(line)[key] for line in listed.splitlines()]
        for name in names:
            transcript.run(what, name, "--json")
        transcript.run(what, {"algorithms": "sac", "environments": "StockTrading-v0"}[what])
        transcript.run(what, "no such")
    transcript.run("zoo", "list")
    transcript.run("zoo", "list", "--json")
    transcript.check("catalogues.txt")


def test_files(transcript):
    """Commands that make or check files, without a server."""
    prices = EXAMPLES / "stock_trading" / "prices.csv"
    transcript.run(
        "init",
        "job.yaml",
        "--environment",
        "StockTrading-v0",
        "--target",
        "20",
        "--max-duration",
        "5m",
    )
    (transcript.folder / "bad.yaml").write_text(
        "name: Bad\nenvironment: CartPole-v0\nobjective: {target: 1}\nsed: 1\n"
    )
    transcript.run("run", "job.yaml", "--json")
    transcript.run("run", "bad.yaml")
    transcript.run("data", "import", prices, "--output", "prices.parquet")
    transcript.run("data", "import", prices, "--output", "prices.parquet", "--json")
    transcript.run("data", "make", "made.csv", "--json")
    transcript.parts.append((transcript.folder / "job.yaml").read_text())
    transcript.check("files.txt")


def page_text(page: str) -> str:
    """The words of an HTML page without figures, one element a line."""
    page = re.sub(r"(?s)<(style|script|svg)\b.*?</\1>", "", page)
    lines = (html.unescape(line).strip() for line in re.sub(r"<[^>]*>", "\n", page).splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def test_stored_job(transcript):
    """The state folder of an earlier version, in which a job has ended and another one has not."""
    with tarfile.open(STATE) as archive:
        archive.extractall(transcript.folder, filter="data")
    with resting_services(transcript.folder / "state") as client:
        token = transcript.folder / "state" / "tokens" / "client"
        servers = (
            "--orchestrator",
            client.connection.orchestrator,
            "--leaderboard",
            client.connection.leaderboard,
        )
        hidden = (*servers, "--token-file", token)
        for arguments in (
            *(["jobs", "--state", "SUCCEEDED"], ["job", "finished"], ["leaderboard", "finished"]),
            *(
                ["leaderboard", "former"],
                ["history", "finished"],
                ["data", "list"],
                ["data", "show", "prices"],
            ),
        ):
            transcript.run(*arguments, hidden=hidden)
            transcript.run(*arguments, "--json", hidden=hidden)
        for missing in ("job", "leaderboard", "cancel", "evaluate"):
            transcript.run(missing, "missing", hidden=hidden)
        transcript.run("leaderboard", "finished", "--all", hidden=hidden)
        transcript.run("report", "finished", "report.html", "--no-video", "--json", hidden=hidden)
        name = client.full_name("finished").rpartition("/")[2]
    transcript.run("trace", name, "--dir", "state")
    transcript.parts.append(page_text((transcript.folder / "report.html").read_text()))
    transcript.check("stored_job.txt")
