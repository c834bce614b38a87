"""The processes of a `PreprocessVecEnv`, each with its rows of the batch: started, asked all at
once, and replaced.

`LocalRows` are a user's environments in this process, for a class or a function that other
processes cannot import."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments.processes.child_process import ChildLost, ChildOutput, ChildProcess
from podracer_core.environments.processes.exchange import create_memory
from podracer_core.environments.processes.gymnasium_rows import open_gymnasium
from podracer_core.environments.processes.preprocess_child import Server
from podracer_core.errors import InvalidInput, UserCodeFailed


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


MOST_ISOLATED = 8
"""Processes with one world each that an evaluation uses at a time, and a cohort by default: each
has its own copy of Python, and often of a simulator."""


class Asked(NamedTuple):
    """The answers of all processes with their payloads; for each missing answer, process index →
    reason."""

    answers: list[tuple[dict[str, Any], bytes]]
    lost: dict[int, str]


class RowProcesses:
    """`count` processes for `num_envs` rows of `spec`; the `memory` that they share has no size
    yet.

    The first of them draws the pictures of row 0, if there are to be any. `code`: what makes an
    environment, packed (see `own_code`). `check` is called during long waits, and may raise."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        num_envs: int,
        count: int,
        *,
        pictures: bool = False,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
        code: bytes = b"",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._spec, self._check = spec, check
        self.pictures, self._code = pictures, code
        self.step_timeout_s, self._start_timeout_s = step_timeout_s, start_timeout_s
        self._mask_size = self.capacity = 0
        self.spread(num_envs, count)
        self.children: list[ChildProcess] = []
        self._mapped = 0  # of them
        self.memory, self.output = create_memory(), ChildOutput()

    def spread(self, num_envs: int, count: int) -> None:
        """Let the first `count` processes have `num_envs` rows; one that is mapped has to keep its
        own."""
        edges = [num_envs * index // count for index in range(count + 1)]
        self.rows = [slice(first, last) for first, last in itertools.pairwise(edges)]
        # A process that looks for its next command without sleeping must not take the core of one
        # that is at work.
        self._spins = count <= core_count()

    def start(self) -> dict[str, Any]:
        """Make the environments; what they say of themselves (`Rows.describe`), and `mask_size`."""
        opened = self.open()
        self._mask_size = self.ask_first("find_masks")[0]["mask_size"]
        return {**opened, "mask_size": self._mask_size}

    def open(self) -> dict[str, Any]:
        """Make the environments; what the first process says of its own, with the seconds of that,
        `start_s`."""
        try:
            return self._open()[0]
        except ChildLost as lost:
            raise self.failed(lost.message) from lost

    def map(self, num_envs: int) -> None:
        """Have the processes attach the memory, which has room for `num_envs` rows by now; start
        those that have rows and do not yet run."""
        self.capacity = num_envs
        try:
            self._open()
            deadline = time.monotonic() + self._start_timeout_s
            for child, rows in zip(
                self.children[self._mapped :], self.rows[self._mapped :], strict=False
            ):
                self._map(child, rows, deadline)
            self._mapped = len(self.children)
        except ChildLost as lost:
            raise self.failed(lost.message) from lost

    def _open(self) -> list[dict[str, Any]]:
        """Start the processes that have rows and do not run yet; their answers."""
        first = len(self.children)
        rows = self.rows[first:]
        # all at once: the rest may wait for them
        self.children += [self._start_child() for _ in rows]
        for child, own in zip(self.children[first:], rows, strict=True):
            self._send_open(child, own)
        return [
            child.receive(time.monotonic() + self._start_timeout_s)[0]
            for child in self.children[first:]
        ]

    def ask(self, command: str, payloads: Sequence[bytes] = ()) -> Asked:
        """Have all do `command` at the same time; `payloads` has one for each of them, or none at
        all."""
        asked = Asked([], {})
        children = self.children[: len(self.rows)]
        for index, child in enumerate(children):
            try:
                child.send(command, payloads[index] if payloads else b"")
            except ChildLost as error:
                asked.lost[index] = error.message
        deadline = time.monotonic() + self.step_timeout_s
        for index, child in enumerate(children):
            if index not in asked.lost:
                try:
                    asked.answers.append(child.receive(deadline))
                except ChildLost as error:
                    asked.lost[index] = error.message
        return asked

    def ask_first(self, command: str) -> tuple[dict[str, Any], bytes]:
        """The first process's answer to `command`. Raises UserCodeFailed if that process is
        lost."""
        try:
            self.children[0].send(command)
            return self.children[0].receive(time.monotonic() + self.step_timeout_s)
        except ChildLost as lost:
            raise self.failed(lost.message) from lost

    def replace(self, index: int) -> dict[str, Any]:
        """Start another process in the place of a lost one, and a new episode in all its rows; its
        answer to that."""
        child = self.children[index] = self._start_child()
        deadline = time.monotonic() + self._start_timeout_s
        try:
            self._send_open(child, self.rows[index])
            child.receive(deadline)
            self._map(child, self.rows[index], deadline)
            child.send("start")
            return child.receive(deadline)[0]
        except ChildLost as again:
            raise self.failed(again.message) from again

    def failed(self, message: str) -> UserCodeFailed:
        """The error to raise if a lost process cannot be replaced."""
        return UserCodeFailed(
            message, user_traceback=self.output.after(""), environment=self._spec.name
        )

    def kill(self) -> None:
        """End the processes at once; another thread may be waiting for them, and has to call
        `close`."""
        for child in list(self.children):
            child.kill()

    def close(self) -> None:
        """End the processes and give back the memory."""
        ChildProcess.end_all(self.children)
        os.close(self.memory)
        self.output.close()

    def _start_child(self) -> ChildProcess:
        return ChildProcess(
            self._spec, self.memory, self.output, spins=self._spins, check=self._check
        )

    def _send_open(self, child: ChildProcess, rows: slice) -> None:
        pictures, count = self.pictures and rows.start == 0, rows.stop - rows.start
        here = {"import_path": sys.path} if self._code else {}
        child.send(
            "open",
            self._code,
            environment=self._spec.to_json(),
            count=count,
            pictures=pictures,
            **here,
        )

    def _map(self, child: ChildProcess, rows: slice, deadline: float) -> None:
        child.send("map", num_envs=self.capacity, first=rows.start, mask_size=self._mask_size)
        child.receive(deadline)


MakeEnvironment = Callable[..., gymnasium.Env[Any, Any]]


class LocalRows(RowProcesses):
    """`RowProcesses` without processes: all rows are stepped in this one, one after the other.

    Exceptions of the user's code reach the caller unchanged.
    """

    def __init__(
        self,
        make: MakeEnvironment,
        spec: EnvironmentSpec,
        num_envs: int,
        *,
        pictures: bool = False,
        waits: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`make` is called once for each row with the spec's arguments; `waits`: each has a thread
        of its own. `check` is called before each row's turn, and may raise."""
        super().__init__(spec, num_envs, 1, pictures=pictures, check=check)
        self._make, self._waits, self._count = make, waits, num_envs
        self._server = Server(self.memory)

    def open(self) -> dict[str, Any]:
        """See `RowProcesses.open`."""
        make, given = self._make, (self._spec.to_json(), self._count, self.pictures)
        described = self._server.open(lambda: open_gymnasium(make, *given, in_threads=self._waits))
        self._server.rows.check = self._check
        return described

    def map(self, num_envs: int) -> None:
        """See `RowProcesses.map`."""
        self.capacity = num_envs
        self._server.rows.map(self.memory, num_envs, 0, self._mask_size)

    def ask(self, command: str, payloads: Sequence[bytes] = ()) -> Asked:
        """See `RowProcesses.ask`."""
        message = {} if command == "step" else {"command": command}
        return Asked([self._answer(message, payloads[0] if payloads else b"")], {})

    def ask_first(self, command: str) -> tuple[dict[str, Any], bytes]:
        """See `RowProcesses.ask_first`."""
        return self._answer({"command": command})

    def close(self) -> None:
        """See `RowProcesses.close`."""
        self._server.close()
        os.close(self.memory)

    def _answer(
        self, message: dict[str, Any], payload: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        try:
            return self._server.answer(message, payload)
        except InvalidInput as error:
            raise InvalidInput(
                f"{self._spec.name}: {error.message}", environment=self._spec.name
            ) from error
