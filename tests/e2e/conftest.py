"""Real commands and real processes; nothing may be left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from support.commands import Result, run_here
from support.processes import Command, descendants, wait_until


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One after the other: each of these tests starts up to nine processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("e2e"))


@contextmanager
def commands_in(folder: Path, **variables: str) -> Iterator[Callable[..., Command]]:
    """Starts `podracer ARGUMENTS` in a folder, with these environment variables; whatever is left
    at the end is a failure, and is killed."""
    commands: list[Command] = []

    def start(*arguments: object) -> Command:
        command = Command([str(argument) for argument in arguments], folder, **variables)
        commands.append(command)
        return command

    yield start
    left = []
    for command in commands:
        processes = descendants(command.process.pid)
        if command.process.poll() is None:
            command.interrupt()
            command.wait(60)
        left += [process for process in processes if process.is_running()]
    _, alive = psutil.wait_procs(left, timeout=60)
    for process in alive:
        process.kill()
        pytest.fail(f"left behind: {process}")


@pytest.fixture
def podracer(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts a `podracer` process in the test's own folder."""
    with commands_in(tmp_path) as start:
        yield start


@pytest.fixture
def up(podracer: Callable[..., Command], tmp_path: Path) -> Callable[..., Command]:
    """Starts `podracer up` at free ports; its state folder is `runs` in the test's own folder."""

    def start(*arguments: object) -> Command:
        return start_up(podracer, tmp_path, *arguments)

    return start


def start_up(podracer: Callable[..., Command], folder: Path, *arguments: object) -> Command:
    """`podracer up` in a folder, once its services are there."""
    connection = folder / "runs" / "connection.json"
    command = podracer(
        "up", "--listen", "127.0.0.1:0", "--leaderboard-listen", "127.0.0.1:0", *arguments
    )
    wait_until(
        lambda: connection.exists() or command.process.poll() is not None, 120, "the services"
    )
    assert connection.exists(), command.stderr
    return command


@pytest.fixture
def run(podracer: Callable[..., Command], tmp_path: Path) -> Callable[..., Command | Result]:
    """Runs a command to its end: `run` in a process of its own, others in this one."""

    def run(*arguments: object, timeout_s: float = 240) -> Command | Result:
        if arguments[0] != "run":
            return run_here(*arguments, cwd=tmp_path)
        command = podracer(*arguments)
        command.wait(timeout_s)
        return command

    return run
