"""`podracer ARGUMENTS` in the test's own process, for tests of what a command prints, writes and
returns."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from podracer_client.__main__ import main
from podracer_client.local import services


@dataclass(frozen=True)
class Result:
    """What a command gave, as `subprocess.CompletedProcess` has it."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def process(self) -> Result:
        """As a `Command` has it."""
        return self

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON objects that it printed, one a line."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]


def run_here(*arguments: object, cwd: Path, **variables: str) -> Result:
    """Run a command to its end in the folder `cwd`, without this process's PODRACER_ variables but
    with `variables`."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")
    }
    streams = [
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    ]
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, environment | variables, clear=True),
        mock.patch.object(sys, "argv", ["podracer", *map(str, arguments)]),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    stdout, stderr = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    return Result(code, stdout, stderr)


@contextlib.contextmanager
def one_evaluator() -> Iterator[None]:
    """Commands that start a private evaluator all use the same one meanwhile: a real process,
    started once."""
    with services.private_evaluator() as stub:

        @contextlib.contextmanager
        def shared() -> Iterator[Any]:
            yield stub

        with mock.patch.object(services, "private_evaluator", shared):
            yield
