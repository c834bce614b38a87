"""What the documents show is what works: their commands are run in the order in which they stand,
and their programs.

The commands are the documents' own, but jobs are given a smaller budget, servers ports of the
system's choice. Documents share one server where they talk to a server, and one finished job where
they look at its results. What needs no running is in tests/unit/test_documents.py."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from podracer_client import Client
from podracer_client.display import TARGET_MISSED
from support.commands import Result, one_evaluator, run_here
from support.documents import blocks
from support.processes import EXAMPLES, ROOT, Command, wait_until
from tests.e2e.conftest import commands_in, start_up

pytestmark = [pytest.mark.thorough, pytest.mark.processes]
README = (ROOT / "README.md").read_text()
SMALL_PODS = (
    "pod: {count: 1, layout: fused, members: 2, envs_per_member: 16}\nevaluation: {episodes: 8}\n"
)
SMALL_JOB = (
    "evolution: {population: 2, leaderboard_size: 2, round: {env_steps: 2_048}}\n" + SMALL_PODS
)
TRADING = """\
evolution: {population: 3, leaderboard_size: 3, round: {env_steps: 1_024}}
pod: {count: 1, layout: fused, envs_per_member: 16}
evaluation: {episodes: 8}
"""


def smaller(text: str, objective: str, rest: str = SMALL_JOB) -> str:
    """A job file with another end; `rest` stands for its sections `evolution`, `pod` and
    `evaluation`."""
    lines = re.sub(r"^objective: .*$", f"objective: {objective}", text, flags=re.MULTILINE)
    kept = [
        line
        for line in lines.splitlines()
        if not line.startswith(("evolution:", "pod:", "evaluation:"))
    ]
    return "\n".join(kept) + "\n" + rest


def write_examples(folder: Path) -> None:
    """The examples of the repository, with small jobs."""
    copy = shutil.copytree(EXAMPLES, folder / "examples")
    objectives = {
        "cartpole": "{target_return: 475, statistic: mean, max_env_steps: 8_192, max_duration: 2m}",
        "experiment": "{target_return: 475, statistic: mean, max_env_steps: 2_048}",
        "trading": "{max_env_steps: 3_072}",
    }
    for name, objective in objectives.items():
        file = copy / f"{name}.yaml"
        file.write_text(
            smaller(file.read_text(), objective, TRADING if name == "trading" else SMALL_JOB)
        )


@pytest.fixture(scope="module", autouse=True)
def evaluator() -> Iterator[None]:
    with one_evaluator():
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which `podracer up` has been called."""
    folder = tmp_path_factory.mktemp("server")
    write_examples(folder)
    with commands_in(folder) as start:
        start_up(start, folder)
        yield folder


@pytest.fixture(scope="module")
def cartpole(server: Path) -> str:
    """The job of examples/cartpole.yaml, which has ended at the server."""
    with Client.connect(folder=server / "runs") as client:
        job = client.submit(server / "examples" / "cartpole.yaml").wait()
    assert job.state == "SUCCEEDED", job.message.problem
    return job.name.rpartition("/")[2]


def newest_job(folder: Path) -> str:
    """By its name as a user would write it."""
    jobs = run_here("jobs", "--json", cwd=folder).events
    newest = max(jobs, key=lambda job: job["create_time"])
    return str(newest["name"]).rpartition("/")[2]


class Terminal:
    """Executes what a document shows, in a folder: each command to its end, but those that end with
    & until they serve.

    job      what stands for JOB
    ended    what has ended, by its line
    """

    def __init__(self, folder: Path, podracer: Callable[..., Command]) -> None:
        self.folder, self._podracer = folder, podracer
        self.job = ""
        self.address = ""
        self.serving: Command | None = None
        self.ended: dict[str, Command | Result] = {}

    def execute(self, line: str) -> Command | Result | None:
        program, *arguments = [
            word.replace("JOB", self.job) for word in shlex.split(line, comments=True)
        ]
        assert program == "podracer", line
        if arguments[-1] != "&":
            ended = (
                self._run(arguments)
                if arguments[0] in ("run", "demo")
                else run_here(*arguments, cwd=self.folder)
            )
            assert ended.returncode in (0, TARGET_MISSED), (line, ended.stderr)
            self.ended[line] = ended
            return ended
        if arguments[0] == "up":
            assert arguments[1:-1] in ([], ["--dir", "runs"]), "the server that is there"
            assert (self.folder / "runs" / "connection.json").exists()
            return None
        assert arguments[0] == "serve"
        self.serving = serving = self._podracer(*arguments[:-1], "--listen", "127.0.0.1:0")
        wait_until(lambda: told(serving, "stop") or serving.returncode is not None, 120, line)
        self.address = told(serving, "policy server")
        assert self.address, serving.stderr
        return None

    def _run(self, arguments: list[str]) -> Command:
        command = self._podracer(*arguments)
        if command.wait(240) in (0, TARGET_MISSED) and arguments[0] == "run":
            self.job = newest_job(self.folder)
        return command

    def program(self, program: str) -> str:
        """What a program in Python prints, which asks the policy server if any."""
        if self.address:
            program = program.replace("127.0.0.1:7710", self.address)
        return printed(lambda: exec(program, {"__name__": "__main__"}), self.folder)


def told(command: Command, title: str) -> str:
    """What a command has said beside a title so far."""
    return next(
        (
            line.removeprefix(title).strip()
            for line in list(command.lines)
            if line.startswith(title)
        ),
        "",
    )


def printed(call: Callable[[], object], folder: Path) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")
    }
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environment, clear=True),
        contextlib.redirect_stdout(io.StringIO()) as stdout,
    ):
        call()
    return stdout.getvalue()


def commands_of(document: str, section: str = "") -> list[str]:
    """The lines of the one block of commands of a document, or of its section."""
    text = (ROOT / document).read_text()
    (commands,) = blocks(
        text.split(f"## {section}\n")[1].split("\n## ")[0] if section else text, "sh"
    )
    return commands.splitlines()


def test_the_commands_of_the_first_minute(podracer, tmp_path):
    terminal = Terminal(tmp_path, podracer)
    for line in commands_of("README.md", "The first minute"):
        terminal.execute(line)
    assert (tmp_path / "podracer-demo" / "champion.mp4").stat().st_size > 0
    assert (tmp_path / "cartpole.yaml").exists()


def test_the_commands_of_your_own_job(podracer, tmp_path):
    (shown,) = blocks(README.split("## Your own job")[1].split("\n## ")[0], "yaml")
    assert "{target_return: -200, max_duration: 10m}" in shown
    rest = SMALL_JOB.replace(
        "population: 2, leaderboard_size: 2", "population: 4, leaderboard_size: 4"
    )
    text = smaller(
        shown,
        "{target_return: -200, max_env_steps: 12_800}",
        rest.replace("members: 2", "members: 1"),
    )
    (tmp_path / "pendulum.yaml").write_text(text)
    terminal = Terminal(tmp_path, podracer)
    checkpoint = ""
    for line in commands_of("README.md", "Your own job"):
        ended = terminal.execute(line.replace("CHECKPOINT", checkpoint))
        if line.startswith("podracer run ") and "--json" in line:
            assert isinstance(ended, Command)
            assert ended.events[-1]["state"] == "SUCCEEDED"
            checkpoint = ended.events[-1]["checkpoint"]
    assert checkpoint
    assert (tmp_path / "policy.pt2").stat().st_size > 0
    assert (tmp_path / "policy.mp4").stat().st_size > 0


def test_the_commands_of_several_jobs_at_once(podracer, tmp_path, server):
    write_examples(tmp_path)
    alone, at_server = Terminal(tmp_path, podracer), Terminal(server, podracer)
    for line in commands_of("docs/job-file.md", "Several jobs at once"):
        ended = (alone if line.startswith("podracer run ") else at_server).execute(line)
        assert ended is not None
        names = [f"experiment-{number}-" for number in (1, 2, 3, 4)]
        assert all(name in "\n".join(ended.lines) for name in names), (line, ended.lines)


def test_the_commands_of_as_a_service(podracer, server):
    terminal = Terminal(server, podracer)
    for line in commands_of("README.md", "As a service"):
        terminal.execute(line)
    (program,) = blocks(README.split("## As a service")[1].split("\n## ")[0], "python")
    terminal.program(program)
    assert (server / "best" / "manifest.json").exists()


def test_the_commands_of_trading(podracer, tmp_path):
    write_examples(tmp_path)
    terminal = Terminal(tmp_path, podracer)
    value = 0.0
    for line in commands_of("docs/trading.md"):
        program, *arguments = shlex.split(line, comments=True)
        if program != "python":
            terminal.execute(line)
            continue
        with mock.patch.object(sys, "argv", [*arguments, "--address", terminal.address]):
            account = printed(lambda: runpy.run_path(arguments[0], run_name="__main__"), tmp_path)  # noqa: B023
        value = float(account.splitlines()[-1].split()[2].replace(",", ""))
    (program,) = blocks((ROOT / "docs" / "trading.md").read_text(), "python")
    assert len(terminal.program(program).strip("[]\n").split()) == 10, "an action for each ticker"
    page = (tmp_path / f"{terminal.job}-backtest" / "index.html").read_text()
    assert "equal weight, monthly" in page
    equity = (tmp_path / f"{terminal.job}-backtest" / "equity.csv").read_text().splitlines()
    # Numbers of shares are rounded: a policy at the edge buys one more or less where it is
    # calculated otherwise.
    assert value == pytest.approx(float(equity[-1].split(",")[1]), rel=1e-4), (
        "on paper as in the back-test"
    )
    assert {path.name for path in (tmp_path / "spring").iterdir()} == {
        "index.html", "trades.csv", "equity.csv", "holdings.csv"
    }  # fmt: skip
    pictures = {path.name for path in (ROOT / "docs" / "images" / "trading").iterdir()}
    assert pictures <= {path.name for path in (tmp_path / "pictures").iterdir()}, (
        "made by these commands"
    )
    assert (tmp_path / "trader.pt2").stat().st_size > 0


def look_at(job: str, document: str, folder: Path, podracer: Callable[..., Command]) -> Terminal:
    """Execute the commands of a document but the first, which makes a job as the one that has
    ended."""
    first, *others = commands_of(document)
    assert shlex.split(first, comments=True) in (
        ["podracer", "run", "examples/cartpole.yaml"],
        ["podracer", "run", "examples/cartpole.yaml", "--dir", "runs"],
    )
    terminal = Terminal(folder, podracer)
    terminal.job = job
    for line in others:
        terminal.execute(line)
    return terminal


def test_the_commands_of_telemetry(podracer, server, cartpole):
    terminal = look_at(cartpole, "docs/telemetry.md", server, podracer)
    (tree,) = [
        ended.lines
        for line, ended in terminal.ended.items()
        if line.startswith("podracer trace JOB  ")
    ]
    assert all(
        name in "\n".join(tree) for name in ("JobService/CreateJob", "train", "gradient steps")
    )
    assert '"traceEvents":[{' in (server / f"{terminal.job}-trace.json").read_text()


def test_the_commands_of_results(podracer, server, cartpole):
    terminal = look_at(cartpole, "docs/results.md", server, podracer)
    (ranking,) = [
        ended for line, ended in terminal.ended.items() if line.startswith("podracer leaderboard ")
    ]
    assert any(line.split()[:2] == ["rank", "agent"] for line in ranking.lines)
    assert "</html>" in (server / f"{terminal.job}-report.html").read_text()
    assert (server / "figures" / "lineage.svg").stat().st_size > 0
    assert (server / "champion.gif").read_bytes().startswith(b"GIF89a")


def test_the_commands_of_loggers(podracer, server, cartpole):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    terminal = look_at(cartpole, "docs/loggers.md", server, podracer)
    first, again = (
        ended.lines[-1]
        for line, ended in terminal.ended.items()
        if line.startswith("podracer log ")
    )
    assert "evaluations in tensorboard" in first
    assert again.endswith(" 0 of them new")
    assert list((server / "board" / terminal.job).glob("*/events.out.tfevents.*"))


def test_the_commands_of_serving(server, cartpole):
    with commands_in(server) as start:
        terminal = look_at(cartpole, "docs/serving.md", server, start)
        programs = blocks((ROOT / "docs" / "serving.md").read_text(), "python")
        client, onnx = (terminal.program(program) for program in programs)
        served = client.split()
        assert served[0] in ("0", "1")
        assert served[1:3] == [f"[{served[0]}]", "cartpole"]
        assert onnx.split() == served[1:2], "the file acts as the server does"
        assert terminal.serving is not None
        terminal.serving.interrupt()
        assert terminal.serving.wait(60) == 130


def test_the_programs_of_in_a_notebook(tmp_path):
    write_examples(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    (short,) = blocks(README.split("## In a notebook")[1].split("\n## ")[0], "python")
    assert "CartPole-v1" in printed(lambda: exec(short, names), tmp_path)
    for program in blocks((ROOT / "docs" / "notebook.md").read_text(), "python"):
        printed(lambda: exec(program, names), tmp_path)  # noqa: B023
    assert names["loaded"].best.mean >= 475
    assert (names["result"].algorithm, names["result"].environment) == ("ppo", "CartPole-v1")
    assert names["result"].history, "of a tournament, too"


def test_the_commands_of_market_data(podracer, server):
    terminal = Terminal(server, podracer)
    for line in commands_of("docs/market-data.md"):
        terminal.execute(line)
    assert (server / "copy.parquet").stat().st_size > 0


def test_the_commands_of_continuous_training(podracer, server):
    shown = blocks((ROOT / "docs" / "continuous-training.md").read_text(), "yaml")[0]
    assert "{max_duration: 20m}" in shown
    (server / "trader.yaml").write_text(smaller(shown, "{max_env_steps: 4_096}"))
    terminal = Terminal(server, podracer)

    def history() -> list[dict]:
        return run_here("history", "trader", "--json", cwd=server).events

    decisions = 0
    for line in commands_of("docs/continuous-training.md"):
        if not line.startswith("podracer "):
            subprocess.run(line, shell=True, cwd=server, check=True, timeout=60)
            continue
        ended = terminal.execute(line)
        words = line.split()
        if words[1] == "submit" or "--append" in words:
            decisions += 1
            wait_until(lambda count=decisions: len(history()) == count, 240, line)
        if words[1] == "promote":
            assert "/trader-2/agents/" in "\n".join(ended.lines)
        if words[1] == "rollback":
            assert "/trader-" in "\n".join(ended.lines)
    assert decisions == 2
