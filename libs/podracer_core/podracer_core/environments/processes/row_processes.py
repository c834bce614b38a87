"""The processes of a `PreprocessVecEnv`, each with its rows of the batch: started, asked all at once, and replaced."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.environments.processes.child_process import ChildLost, ChildProcess
from podracer_core.environments.processes.exchange import create_memory
from podracer_core.errors import UserCodeFailed


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Asked(NamedTuple):
    """The answers of all processes with their payloads; for each missing answer, process index → reason."""

    answers: list[tuple[dict[str, Any], bytes]]
    lost: dict[int, str]


class RowProcesses:
    """`count` processes for `num_envs` rows of `spec`; the `memory` that they share has no size yet.

    The first of them draws the pictures of row 0, if there are to be any.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        num_envs: int,
        count: int,
        *,
        pictures: bool,
        step_timeout_s: float,
        start_timeout_s: float,
    ) -> None:
        self._spec, self._num_envs = spec, num_envs
        self._pictures = pictures
        self._step_timeout_s, self._start_timeout_s = step_timeout_s, start_timeout_s
        # A process that looks for its next command without sleeping must not take the core of one that is at work.
        self._spins = count <= core_count()
        self._mask_size = 0
        edges = [num_envs * index // count for index in range(count + 1)]
        self.rows = [slice(first, last) for first, last in itertools.pairwise(edges)]
        self.children: list[ChildProcess] = []
        self.memory = create_memory()

    def start(self) -> dict[str, Any]:
        """Make the environments; what they say of themselves (`Rows.describe`), and `mask_size`."""
        try:
            for rows in self.rows:
                self.children.append(self._start_child())
                self._send_open(self.children[-1], rows)
            answers = [child.receive(time.monotonic() + self._start_timeout_s) for child in self.children]
            deadline = time.monotonic() + self._start_timeout_s
            self.children[0].send("find_masks")
            self._mask_size = self.children[0].receive(deadline)["mask_size"]
        except ChildLost as lost:
            raise self.failed(lost.message) from lost
        return {**answers[0], "mask_size": self._mask_size}

    def map(self) -> None:
        """Have all processes attach the memory, which has its size by now."""
        deadline = time.monotonic() + self._start_timeout_s
        try:
            for child, rows in zip(self.children, self.rows, strict=True):
                self._map(child, rows, deadline)
        except ChildLost as lost:
            raise self.failed(lost.message) from lost

    def ask(self, command: str, payloads: Sequence[bytes] = ()) -> Asked:
        """Have all do `command` at the same time; `payloads` has one for each of them, or none at all."""
        asked = Asked([], {})
        for index, child in enumerate(self.children):
            try:
                child.send(command, payloads[index] if payloads else b"")
            except ChildLost as error:
                asked.lost[index] = error.message
        deadline = time.monotonic() + self._step_timeout_s
        for index, child in enumerate(self.children):
            if index not in asked.lost:
                try:
                    asked.answers.append(child.receive_payload(deadline))
                except ChildLost as error:
                    asked.lost[index] = error.message
        return asked

    def ask_first(self, command: str) -> tuple[dict[str, Any], bytes]:
        """The first process's answer to `command`. Raises UserCodeFailed if that process is lost."""
        try:
            self.children[0].send(command)
            return self.children[0].receive_payload(time.monotonic() + self._step_timeout_s)
        except ChildLost as lost:
            raise self.failed(lost.message) from lost

    def replace(self, index: int) -> None:
        """Start another process in the place of a lost one, and a new episode in all its rows."""
        child = self.children[index] = self._start_child()
        deadline = time.monotonic() + self._start_timeout_s
        try:
            self._send_open(child, self.rows[index])
            child.receive(deadline)
            self._map(child, self.rows[index], deadline)
            child.send("start")
            child.receive(deadline)
        except ChildLost as again:
            raise self.failed(again.message) from again

    def failed(self, message: str) -> UserCodeFailed:
        """The error to raise if a lost process cannot be replaced."""
        return UserCodeFailed(message, environment=self._spec.name)

    def close(self) -> None:
        """End the processes and give back the memory."""
        ChildProcess.end_all(self.children)
        os.close(self.memory)

    def _start_child(self) -> ChildProcess:
        return ChildProcess(self._spec.name, self.memory, spins=self._spins)

    def _send_open(self, child: ChildProcess, rows: slice) -> None:
        pictures = self._pictures and rows.start == 0
        child.send("open", environment=self._spec.to_json(), count=rows.stop - rows.start, pictures=pictures)

    def _map(self, child: ChildProcess, rows: slice, deadline: float) -> None:
        child.send("map", num_envs=self._num_envs, first=rows.start, mask_size=self._mask_size)
        child.receive(deadline)
