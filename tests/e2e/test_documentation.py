"""What the documents show is what works: job files are loaded, commands are run in the order in which they stand."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from podracer_core.jobs.experiment import load_experiment, parse_experiment
from support.processes import EXAMPLES, ROOT, Command, free_port, wait_until

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a document."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def job_files() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(ROOT)}-{index}", block)
        for path in DOCUMENTS
        for index, block in enumerate(blocks(path.read_text(), "yaml"))
        if "\nobjective:" in block
    ]


@pytest.mark.parametrize(("name", "text"), job_files(), ids=[name for name, _ in job_files()])
def test_a_job_file_in_a_document_is_valid(name: str, text: str, tmp_path: Path) -> None:
    for package in re.findall(r"^  code: (\S+)", text, re.MULTILINE):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for data_set in re.findall(r"^data: \{\w+: (\S+)\}", text, re.MULTILINE):
        (tmp_path / data_set).touch()
    assert parse_experiment(text, name, tmp_path).jobs


@pytest.mark.parametrize("name", ["auto", "experiment", "trading"])
def test_a_job_file_that_is_shown_is_the_example(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples")
    (folder / "prices.csv").touch()
    shown = [parse_experiment(text, "job.yaml", folder) for _, text in job_files() if f"name: {name}\n" in text]
    assert load_experiment(folder / f"{name}.yaml") in shown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere_and_make_targets_exist(document: Path) -> None:
    text = document.read_text()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / link).exists(), link
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)(?: |$)(?=\s*(?:#|$))", text, re.MULTILINE):
        assert set(target) & targets, target


def test_the_commands_of_your_own_job(run: Callable[..., Command], tmp_path: Path) -> None:
    section = README.split("## Your own job")[1].split("\n## ")[0]
    (tmp_path / "pendulum.yaml").write_text(blocks(section, "yaml")[0])
    placeholders: dict[str, str] = {}
    (commands,) = blocks(section, "sh")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "podracer"
        command = run(*(placeholders.get(argument, argument) for argument in arguments), timeout_s=240)
        if "--ensemble" in arguments and "candidate" in command.stderr:  # it met its target before more were judged
            continue
        assert command.process.returncode == 0, (line, command.stderr)
        if "--json" in arguments and arguments[0] == "run":
            job = next(event["job"] for event in command.events if event["event"] == "progress")
            placeholders = {"CHECKPOINT": command.events[-1]["checkpoint"], "JOB": job}
            assert command.events[-1]["best_return"] > -200
    assert (tmp_path / "policy.pt2").stat().st_size > 0


def test_the_commands_of_several_jobs_at_once(
    podracer: Callable[..., Command], run: Callable[..., Command], tmp_path: Path
) -> None:
    section = (ROOT / "docs" / "job-file.md").read_text().split("## Several jobs at once")[1].split("\n## ")[0]
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (commands,) = blocks(section, "sh")
    for line in commands.splitlines():
        _, *arguments = shlex.split(line, comments=True)
        if arguments[0] == "submit":
            podracer("up")
            wait_until((tmp_path / "runs" / "connection.json").exists, 60, "the services")
        command = run(*arguments, timeout_s=240)
        assert command.process.returncode == 0, (line, command.stderr)
        names = [f"experiment-{number}-" for number in (1, 2, 3, 4)]
        assert all(name in "\n".join(command.lines) for name in names), (line, command.lines)


def test_the_commands_of_as_a_service(podracer: Callable[..., Command], run: Callable, tmp_path: Path) -> None:
    section = README.split("## As a service")[1].split("\n## ")[0]
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (commands,) = blocks(section, "sh")
    for line in commands.splitlines():
        _, *arguments = shlex.split(line, comments=True)
        if arguments[-1] == "&":
            podracer(*arguments[:-1])
            wait_until((tmp_path / "runs" / "connection.json").exists, 60, "the services")
        else:
            command = run(*arguments)
            assert command.process.returncode == 0, (line, command.stderr)
    (program,) = blocks(section, "python")
    _python(program, tmp_path)
    assert (tmp_path / "best" / "manifest.json").exists()


def run_commands(document: str, run: Callable[..., Command]) -> tuple[str, dict[str, Command]]:
    """Run the one block of commands of a document, in which JOB is the job of its `run`. Returns the job and, by line,
    what has run."""
    (commands,) = blocks((ROOT / "docs" / document).read_text(), "sh")
    job, ended = "", {}
    for line in commands.splitlines():
        _, *arguments = shlex.split(line, comments=True)
        json = ["--json"] if arguments[0] == "run" else []
        command = run(*(job if argument == "JOB" else argument for argument in arguments), *json, timeout_s=120)
        assert command.process.returncode == 0, (line, command.stderr)
        if json:
            job = next(event["job"] for event in command.events if event["event"] == "progress").rpartition("/")[2]
        ended[line] = command
    return job, ended


def test_the_commands_of_trading(podracer: Callable[..., Command], run: Callable[..., Command], tmp_path: Path) -> None:
    text = (ROOT / "docs" / "trading.md").read_text()
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (commands,), (program,) = blocks(text, "sh"), blocks(text, "python")
    job, listen = "", f"127.0.0.1:{free_port()}"
    for line in commands.splitlines():
        program_name, *arguments = [job if word == "JOB" else word for word in shlex.split(line, comments=True)]
        if program_name == "python":
            command_line = [sys.executable, *arguments, "--address", listen]
            told = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
            value = float(told.stdout.splitlines()[-1].split()[2].replace(",", ""))
            continue
        if arguments[-1] == "&":
            serve = podracer(*arguments[:-1], "--listen", listen)
            wait_until(lambda: any(line.startswith("stop") for line in serve.lines), 90, "the policy server")  # noqa: B023
            continue
        command = run(*arguments, *(["--json"] if arguments[0] == "run" else []), timeout_s=240)
        assert command.process.returncode == 0, (line, command.stderr)
        if arguments[0] == "run":
            job = next(event["job"] for event in command.events if event["event"] == "progress").rpartition("/")[2]
    shown = _python(program.replace("127.0.0.1:7710", listen), tmp_path)
    assert len(shown.strip("[]\n").split()) == 10, "an action for each ticker"
    page = (tmp_path / f"{job}-backtest" / "index.html").read_text()
    assert "equal weight, monthly" in page
    equity = (tmp_path / f"{job}-backtest" / "equity.csv").read_text().splitlines()
    assert value == pytest.approx(float(equity[-1].split(",")[1]), rel=1e-6), "on paper as in the back-test"
    assert {path.name for path in (tmp_path / "spring").iterdir()} == {
        "index.html", "trades.csv", "equity.csv", "holdings.csv"
    }  # fmt: skip
    pictures = {path.name for path in (ROOT / "docs" / "images" / "trading").iterdir()}
    assert pictures <= {path.name for path in (tmp_path / "pictures").iterdir()}, "made by these commands"
    assert (tmp_path / "trader.pt2").stat().st_size > 0


def test_the_commands_of_telemetry(run: Callable[..., Command], tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    job, ended = run_commands("telemetry.md", run)
    (tree,) = ["\n".join(command.lines) for line, command in ended.items() if line.startswith("podracer trace JOB  ")]
    assert all(name in tree for name in ("JobService/CreateJob", "train", "gradient steps"))
    assert "</html>" in (tmp_path / f"{job}-trace.html").read_text()
    assert "</html>" in (tmp_path / "page.html").read_text()


def test_the_commands_of_results(run: Callable[..., Command], tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    job, ended = run_commands("results.md", run)
    (ranking,) = [command for line, command in ended.items() if line.startswith("podracer leaderboard ")]
    assert any(line.split()[:2] == ["rank", "agent"] for line in ranking.lines)
    assert "</html>" in (tmp_path / f"{job}-report.html").read_text()
    assert (tmp_path / "figures" / "lineage.svg").stat().st_size > 0


def test_the_commands_of_market_data(
    podracer: Callable[..., Command], run: Callable[..., Command], tmp_path: Path
) -> None:
    (commands,) = blocks((ROOT / "docs" / "market-data.md").read_text(), "sh")
    for line in commands.splitlines():
        _, *arguments = shlex.split(line, comments=True)
        if arguments[-1] == "&":
            podracer(*arguments[:-1])
            wait_until((tmp_path / "runs" / "connection.json").exists, 60, "the services")
        else:
            command = run(*arguments)
            assert command.process.returncode == 0, (line, command.stderr)
    assert (tmp_path / "copy.parquet").stat().st_size > 0


def test_the_commands_of_continuous_training(
    podracer: Callable[..., Command], run: Callable[..., Command], tmp_path: Path
) -> None:
    document = (ROOT / "docs" / "continuous-training.md").read_text()
    shown = blocks(document, "yaml")[0]
    assert "{max_duration: 20m}" in shown
    (tmp_path / "trader.yaml").write_text(shown.replace("{max_duration: 20m}", "{max_duration: 6s}"))
    decisions = 0
    (commands,) = blocks(document, "sh")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program != "podracer":
            subprocess.run(line, shell=True, cwd=tmp_path, check=True, timeout=30)
            continue
        if arguments[-1] == "&":
            podracer(*arguments[:-1])
            wait_until((tmp_path / "runs" / "connection.json").exists, 60, "the services")
            continue
        command = run(*arguments)
        assert command.process.returncode == 0, (line, command.stderr)
        if arguments[0] == "submit" or "--append" in arguments:
            decisions += 1
            wait_until(lambda count=decisions: len(run("history", "trader", "--json").events) == count, 180, line)
        if arguments[0] == "promote":
            assert "/trader-2/agents/" in "\n".join(command.lines)
        if arguments[0] == "rollback":
            assert "/trader-" in "\n".join(command.lines)
    assert decisions == 2


def test_the_commands_of_serving(podracer: Callable[..., Command], run: Callable[..., Command], tmp_path: Path) -> None:
    text = (ROOT / "docs" / "serving.md").read_text()
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (commands,) = blocks(text, "sh")
    job, listen = "", f"127.0.0.1:{free_port()}"
    for line in commands.splitlines():
        _, *arguments = [word.replace("JOB", job) for word in shlex.split(line, comments=True)]
        if arguments[-1] == "&":
            serve = podracer(*arguments[:-1], "--listen", listen)
            wait_until(lambda: any(line.startswith("stop") for line in serve.lines), 90, "the policy server")  # noqa: B023
        else:
            command = run(*arguments, *(["--json"] if arguments[0] == "run" else []))
            assert command.process.returncode == 0, (line, command.stderr)
        if arguments[0] == "run":
            job = next(event["job"] for event in command.events if event["event"] == "progress").rpartition("/")[2]
    client, onnx = (_python(program.replace("127.0.0.1:7710", listen), tmp_path) for program in blocks(text, "python"))
    served = client.split()
    assert served[0] in ("0", "1")
    assert served[1:3] == [f"[{served[0]}]", "cartpole"]
    assert onnx.split() == served[1:2], "the file acts as the server does"
    serve.interrupt()
    assert serve.wait(60) == 130


def _python(program: str, folder: Path) -> str:
    """What a program of a document prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
