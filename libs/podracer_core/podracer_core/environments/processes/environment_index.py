"""Makes the environments of rows, each with a number that no other on this machine has, for ports
and such."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import inspect
import itertools
import os
import platform
import socket
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from podracer_core.environments.processes.checker import require_environment
from podracer_core.environments.processes.gymnasium_rows import GymnasiumRows
from podracer_core.environments.processes.in_thread import InThread
from podracer_core.errors import InvalidInput

_Environment = gymnasium.Env[Any, Any]
VARIABLE = "PODRACER_ENVIRONMENT_INDEX"
"""The variable of a child process with the index of its first environment."""
_ARGUMENT = "environment_index"
_ADVICE = (
    "if each environment needs a port or a number of its own, let the constructor take the "
    f"argument {_ARGUMENT}: it is different in all environments that are open on this machine"
)


class EnvironmentIndex:
    """The lowest free number, from 0, until `close` or the end of the process."""

    def __init__(self) -> None:
        marks = ((number, _mark(f"podracer-environment-{number}")) for number in itertools.count())
        self.number, self._mark = next((number, mark) for number, mark in marks if mark is not None)

    def close(self) -> None:
        """Let another environment have the number."""
        os.close(self._mark)


def _mark(name: str) -> int | None:
    """A descriptor that marks `name` as taken while it is open; None if another one does.

    In Linux it is a name in the kernel's table of sockets. Its scope is that of ports: all
    containers of a pod and all users of a machine share it."""
    if platform.system() == "Linux":
        with socket.socket(socket.AF_UNIX) as ours:
            try:
                ours.bind(f"\0{name}")
            except OSError:
                return None
            return ours.detach()
    file = os.open(Path(tempfile.gettempdir(), name), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def open_gymnasium(
    make: Callable[..., Any], environment: Mapping[str, Any], count: int, pictures: bool, *,
    first: EnvironmentIndex | None = None, in_threads: bool = False,
    tell: Callable[[int], None] = lambda made: None,
) -> GymnasiumRows:  # fmt: skip
    """Rows of `count` environments that `make` makes with the arguments of `environment`
    (`EnvironmentSpec.to_json`), each with an index, of which one may be there, if the constructor
    names an argument for it.

    `in_threads`: each in a thread of its own, at the same time. `tell` gets how many there are by
    now."""
    name, kwargs = environment["id"] or environment["entry_point"], dict(environment["kwargs"])
    if pictures:
        if not _takes(make, "render_mode", in_rest=True):
            raise InvalidInput(
                "it cannot be filmed: it takes no argument render_mode, as Gymnasium's "
                "environments do"
            )
        kwargs = {"render_mode": "rgb_array"} | kwargs
    constructor: Any = inspect.unwrap(make)
    if isinstance(constructor, partial) and constructor.func is gymnasium.make:
        (spec,) = constructor.args
        if isinstance(spec, str):
            module, _, registered = spec.rpartition(":")
            if module:
                importlib.import_module(module)  # it registers the id
            spec = gymnasium.spec(registered)
        entry_point = spec.entry_point
        constructor = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    named = _takes(constructor, _ARGUMENT)
    indices = [first] if first else []
    while named and len(indices) < count:
        indices.append(EnvironmentIndex())

    def make_row(row: int) -> _Environment:
        own = {_ARGUMENT: indices[row].number} if named else {}
        return require_environment(make(**{**own, **kwargs}), name)

    def make_in_thread(row: int) -> InThread:
        return InThread(partial(make_row, row))

    begun = [make_in_thread(row) for row in range(count)] if in_threads else []
    made: list[_Environment] = []
    try:
        for row in range(count):
            made.append(begun[row].wait_until_made() if begun else make_row(row))
            tell(row + 1)
        if any(each.unwrapped is made[0].unwrapped for each in made[1:]):
            raise InvalidInput(
                f"{name} gave the same environment twice; it has to make a new one each time"
            )
    except BaseException as error:
        with contextlib.suppress(Exception):  # an error may have no words
            if "in use" in str(error) and not named:
                error.add_note(_ADVICE)
        for each in [*(begun or made), *indices]:  # a simulator that exists once is free again then
            with contextlib.suppress(Exception):
                each.close()
        raise
    again = (lambda row: make_in_thread(row).wait_until_made()) if in_threads else make_row
    limit, origin = environment["max_episode_steps"], environment["observation_origin"]
    return GymnasiumRows(made, limit, pictures, again, origin, indices)


def _takes(make: Callable[..., Any], name: str, *, in_rest: bool = False) -> bool:
    """Whether a class or function has an argument of that name; `in_rest`: or takes any."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # of a class in C, say
        return False
    return name in parameters or (
        in_rest and any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    )
