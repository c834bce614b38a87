"""A user's environments in this process, for a class or a function that other processes cannot
import."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments.processes.environment_index import open_gymnasium
from podracer_core.environments.processes.preprocess_child import Server
from podracer_core.environments.processes.row_processes import Asked, RowProcesses
from podracer_core.errors import InvalidInput

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
        make, given = self._make, (self._spec.to_json(), self._count, self._pictures)
        described = self._server.open(lambda: open_gymnasium(make, *given, in_threads=self._waits))
        self._server.rows.check = self._check
        return described

    def map(self, num_envs: int) -> None:
        """See `RowProcesses.map`."""
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
