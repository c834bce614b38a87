"""Real commands and real processes; nothing may be left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.processes import Command, descendants


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One after the other: each of these tests starts up to nine processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("e2e"))


@pytest.fixture
def podracer(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts `podracer ARGUMENTS` in the test's own folder; whatever is left at the end is a failure, and is killed."""
    commands: list[Command] = []

    def start(*arguments: object) -> Command:
        command = Command([str(argument) for argument in arguments], tmp_path)
        commands.append(command)
        return command

    yield start
    left = []
    for command in commands:
        left += [process for process in descendants(command.process.pid) if process.is_running()]
        if command.process.poll() is None:
            command.interrupt()
            try:
                command.wait(10)
            except subprocess.TimeoutExpired:
                command.process.kill()
    for process in left:
        try:
            process.wait(5)
        except psutil.TimeoutExpired:
            process.kill()
            pytest.fail(f"left behind: {process}")


@pytest.fixture
def run(podracer: Callable[..., Command]) -> Callable[..., Command]:
    """Runs a command to its end."""

    def run(*arguments: object, timeout_s: float = 120) -> Command:
        command = podracer(*arguments)
        command.wait(timeout_s)
        return command

    return run
