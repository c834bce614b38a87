"""A user's class or function on its way from the user's process to its own child: the only pickle
in this house.

Classes of a notebook, local classes and lambdas have no name that another process can import. The
bytes go over the child's own socket, to no file and no service, and come from the process that has
started the child."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from podracer_core.errors import InvalidInput


def packed(make: Callable[..., Any], name: str) -> bytes:
    """`make` for a child process. Raises InvalidInput if something that it holds cannot leave this
    process."""
    try:
        data: bytes = cloudpickle.dumps(make)
    except Exception as error:  # a user's objects may raise anything
        message = (
            f"{name} cannot be copied into a process of its own: {type(error).__name__}: {error}; "
            "let it make what it needs when it is called"
        )
        raise InvalidInput(message, reason="NOT_COPIED") from error
    return data


def unpacked(data: bytes, import_path: Sequence[str]) -> Callable[..., Any]:
    """The inverse of `packed`, in the child; `import_path` is the parent's, as modules are copied
    by name only."""
    sys.path += [path for path in import_path if path not in sys.path]
    make: Callable[..., Any] = cloudpickle.loads(data)
    return make
