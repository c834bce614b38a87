"""A user's environments in this process, for a class or a function that other processes cannot import."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium

from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.environments.processes.environment_index import EnvironmentIndex, made_by
from podracer_core.environments.processes.gymnasium_rows import GymnasiumRows
from podracer_core.environments.processes.preprocess_child import Server, check_takes_render_mode
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
    ) -> None:
        """`make` is called once for each row with the spec's arguments; `waits`: each has a thread of its own."""
        super().__init__(spec, num_envs, 1, pictures=pictures, step_timeout_s=math.inf, start_timeout_s=math.inf)
        self._make, self._waits = make, waits
        self._indices: list[EnvironmentIndex] = []
        self._server = Server(self.memory)

    def start(self) -> dict[str, Any]:
        """See `RowProcesses.start`."""
        opened = self.open()
        self._mask_size = self._server.rows.mask_size()
        return {**opened, "mask_size": self._mask_size}

    def open(self) -> dict[str, Any]:
        """Make the environments; what they say of themselves, with the seconds of that, `start_s`."""
        began = time.monotonic()
        drawing = {"render_mode": "rgb_array"} if self._pictures else {}
        if self._pictures:
            check_takes_render_mode(self._make)
        made, make = made_by(
            self._make, self._spec.name, self._num_envs, drawing | self._spec.arguments, self._take_indices(),
            in_threads=self._waits,
        )  # fmt: skip
        if any(each.unwrapped is made[0].unwrapped for each in made[1:]):
            raise InvalidInput(f"{self._spec.name} gave the same environment twice; it has to make a new one each time")
        limit, origin = self._spec.max_episode_steps, self._spec.observation_origin
        rows = GymnasiumRows(made, limit, self._pictures, make, origin)
        self._server = Server(self.memory, rows)
        return {**rows.describe(), "start_s": time.monotonic() - began}

    def map(self) -> None:
        """See `RowProcesses.map`."""
        self._server.rows.map(self.memory, self._num_envs, 0, self._mask_size)

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
        for index in self._indices:
            index.close()
        os.close(self.memory)

    def _take_indices(self) -> Iterator[EnvironmentIndex]:
        while True:
            self._indices.append(EnvironmentIndex())
            yield self._indices[-1]

    def _answer(self, message: dict[str, Any], payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        try:
            return self._server.answer(message, payload)
        except InvalidInput as error:
            raise InvalidInput(f"{self._spec.name}: {error.message}", environment=self._spec.name) from error
