"""A number for each open environment that no other on this machine has, for ports and such; torch is not imported."""

from __future__ import annotations

import fcntl
import inspect
import itertools
import os
import platform
import socket
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

VARIABLE = "PODRACER_ENVIRONMENT_INDEX"
"""The variable of a child process with the index of its first environment."""
ARGUMENT = "environment_index"
"""The constructors' argument for it."""


class EnvironmentIndex:
    """The lowest free number, from 0, until `close` or the end of the process."""

    def __init__(self) -> None:
        for self.number in itertools.count():
            mark = _mark(f"podracer-environment-{self.number}")
            if mark is not None:
                self._mark = mark
                return

    def close(self) -> None:
        """Let another environment have the number."""
        os.close(self._mark)


def _mark(name: str) -> int | None:
    """A descriptor that marks `name` as taken while it is open; None if another one does.

    In Linux it is a name in the kernel's table of sockets. Its scope is that of ports: all containers of a pod and all
    users of a machine share it.
    """
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


def take_indices(
    make: Callable[..., Any], count: int, given: Collection[str], first: EnvironmentIndex | None = None
) -> list[EnvironmentIndex]:
    """One for each of `count` environments, from `first` on, if their constructor names an argument for it that is not
    `given`."""
    constructor: Any = make
    if isinstance(make, partial) and make.func is gymnasium.make:
        (spec,) = make.args
        entry_point = (gymnasium.spec(spec) if isinstance(spec, str) else spec).entry_point
        constructor = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    try:
        named = ARGUMENT in inspect.signature(constructor).parameters
    except (TypeError, ValueError):  # of a class in C, say
        named = False
    if not named or ARGUMENT in given:
        return []
    taken = [] if first is None else [first]
    return taken + [EnvironmentIndex() for _ in range(count - len(taken))]


def advice(message: str) -> str:
    """A sentence for the error of a constructor that has found its port, say, taken by another environment; or none."""
    if "in use" not in message:
        return ""
    return (
        f"if each environment needs a port or a number of its own, let the constructor take the argument {ARGUMENT}: "
        "0, 1, 2, …, different in all environments that are open on this machine"
    )


def made_by(
    make: Callable[..., Any], count: int, kwargs: Mapping[str, Any], indices: Sequence[EnvironmentIndex]
) -> Iterator[Any]:
    """`count` environments, each with its index if there are any."""
    for row in range(count):
        own = {ARGUMENT: indices[row].number} if indices else {}
        yield make(**own, **kwargs)
