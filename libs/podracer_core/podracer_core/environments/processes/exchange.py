"""The communication with a process that runs user code; this module imports neither torch nor user
code.

Messages go over a stream socket. A message is a line of JSON, followed by `payload_bytes` bytes.
The empty line is the empty message: it needs no JSON, and a batch exchanges two of them at every
step.

Arrays are in memory that a `PreprocessVecEnv` and its processes share: one array per quantity, one
row per environment. Its file never has a name (or loses it at once), so that nothing remains even
if its processes are killed; the processes inherit its descriptor.

`packed` is a user's class or function on its way from the user's process to its own child: the only
pickle in this house. Classes of a notebook, local classes and lambdas have no name that another
process can import. The bytes go over the child's own socket, to no file and no service, and come
from the process that has started the child."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import mmap
import os
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import Exhausted, InvalidInput

_PART_BYTES = 1 << 16
_PATIENCE_S = 0.25  # how late a deadline may be noticed
_SPIN_S = 100e-6
_yield_core = getattr(os, "sched_yield", lambda: None)

# the spaces of a million numbers, each with its bounds
_MOST_LINE_BYTES, _MOST_PAYLOAD_BYTES = 64 << 20, 4 << 30

_ALIGNMENT_BYTES = 64


PROGRESS = "made"
"""In a message before the answer: how many environments there are by now."""


class Channel:
    """One end of the socket.

    A sleeping process takes about 50 µs to wake up, more than a step of a cheap environment. With
    `spins`, a wait of a kind that was short recently therefore polls the socket for a while,
    yielding the core each time, before it sleeps."""

    def __init__(self, connection: socket.socket, *, spins: bool) -> None:
        seconds = struct.pack("ll", int(_PATIENCE_S), int(_PATIENCE_S % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        self._connection = connection
        self._arrived = select.poll()
        self._arrived.register(connection, select.POLLIN)
        self._spins = spins
        self._received, self._wanted = bytearray(), 0  # bytes
        self._waited_s = math.inf

    def send(self, message: Mapping[str, Any], payload: bytes = b"") -> None:
        """Raises OSError if the other side is gone."""
        if not message and not payload:
            self._connection.sendall(b"\n")
            return
        header = {**message, "payload_bytes": len(payload)} if payload else message
        self._connection.sendall(json.dumps(header).encode() + b"\n")
        if payload:
            self._connection.sendall(payload)

    def receive(self, deadline: float = math.inf) -> tuple[dict[str, Any], bytes]:
        """The next message and its payload.

        Raises TimeoutError when `deadline` (of `time.monotonic`) has passed, OSError if the other
        side is gone, and ValueError for bytes that are not a message. After a TimeoutError it can
        be called again."""
        message = self._take() if self._received else None
        while message is None:
            part = self._wait(deadline)
            if part == b"\n" and not self._received:
                return {}, b""
            self._received += part
            if self._wanted or b"\n" in part:
                message = self._take()
            elif len(self._received) > _MOST_LINE_BYTES:
                raise ValueError(f"a line of more than {_MOST_LINE_BYTES} bytes")
            if message is None and time.monotonic() >= deadline:
                raise TimeoutError("a message has not come to its end in time")
        return message

    def is_silent(self) -> bool:
        """Whether nothing has arrived that no `receive` has returned."""
        if self._received or not self._arrived.poll(0):
            return not self._received
        try:
            # empty: the other side is gone, as `send` will say
            return not self._connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()

    def _take(self) -> tuple[dict[str, Any], bytes] | None:
        """The next message, if it has arrived completely."""
        if len(self._received) < self._wanted:
            return None
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        try:
            header = json.loads(line) if line else {}
        except RecursionError as error:
            raise ValueError(f"{bytes(line[:100])!r} is not a message") from error
        payload_bytes = header.pop("payload_bytes", 0) if isinstance(header, dict) else None
        if type(payload_bytes) is not int or not 0 <= payload_bytes <= _MOST_PAYLOAD_BYTES:
            raise ValueError(f"{bytes(line[:100])!r} is not a message")
        self._wanted = len(line) + len(newline) + payload_bytes
        if len(rest) < payload_bytes:
            return None
        self._received.clear()
        self._wanted = 0
        if PROGRESS in header:  # no answer yet: the next message may be here already
            self._received += rest
        elif len(rest) > payload_bytes:
            raise ValueError(f"{rest[payload_bytes:][:100]!r} follows a message")
        return header, bytes(rest)

    def _wait(self, deadline: float) -> bytes:
        began = time.perf_counter()
        # As long again, because waking up counts too.
        part = (
            self._spin_until(began + _SPIN_S)
            if self._spins and self._waited_s < 2 * _SPIN_S
            else None
        )
        while part is None:
            try:
                part = self._connection.recv(_PART_BYTES)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError("nothing came in time") from None
        self._waited_s = time.perf_counter() - began
        if not part:
            raise ConnectionResetError("the other side has hung up")
        return part

    def _spin_until(self, end: float) -> bytes | None:
        while time.perf_counter() < end:
            try:
                return self._connection.recv(_PART_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                _yield_core()
        return None


@dataclass(frozen=True, slots=True)
class SharedArrays:
    """Views of the shared memory, each with N rows; the meanings are those of `Step`.

    `action_mask` has no columns if the environment has no masks.
    """

    seed: NDArray[np.int64]
    episode: NDArray[np.int64]
    action: NDArray[Any]
    observation: NDArray[Any]
    final_observation: NDArray[Any]
    action_mask: NDArray[np.bool_]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]

    def __getitem__(self, rows: slice) -> SharedArrays:
        return SharedArrays(*(getattr(self, each.name)[rows] for each in fields(self)))

    def break_off(self, rows: Any) -> None:
        """End the episodes of these rows, which then have no return; see `Step.valid`."""
        self.reward[rows] = 0
        self.terminated[rows] = self.valid[rows] = False
        self.truncated[rows] = True


def create_memory() -> int:
    """The descriptor of an empty file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("podracer-environments", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def size_memory(
    descriptor: int,
    num_envs: int,
    observation: gymnasium.spaces.Box,
    action: gymnasium.Space[Any],
    mask_size: int,
) -> None:
    """Give the file the size that `map_memory` needs; Exhausted if there is no memory for it."""
    _, size_bytes = _layout(num_envs, observation, action, mask_size)
    try:
        if hasattr(os, "posix_fallocate"):  # a full tmpfs is an error now instead of a SIGBUS later
            os.posix_fallocate(descriptor, 0, size_bytes)
            if hasattr(os, "memfd_create"):  # user code has it too, and to cut it would end us
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        else:
            os.ftruncate(descriptor, size_bytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EPERM):
            raise
        raise Exhausted(
            f"no shared memory for {num_envs} environments ({size_bytes} bytes): {error}"
        ) from error


def map_memory(
    descriptor: int,
    num_envs: int,
    observation: gymnasium.spaces.Box,
    action: gymnasium.Space[Any],
    mask_size: int,
) -> SharedArrays:
    """The arrays in the file; every process computes the same layout. The mapping lives as long as
    the arrays."""
    places, size_bytes = _layout(num_envs, observation, action, mask_size)
    memory = mmap.mmap(descriptor, size_bytes)
    return SharedArrays(
        **{
            name: np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)
            for name, (dtype, shape, offset) in places.items()
        }
    )


_Places = dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]


def _layout(
    num_envs: int, observation: gymnasium.spaces.Box, action: gymnasium.Space[Any], mask_size: int
) -> tuple[_Places, int]:
    """Name → (dtype, shape, offset in bytes), and the size of all."""
    action_dtype = np.float32 if isinstance(action, gymnasium.spaces.Box) else np.int64
    row_shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "seed": (np.int64, ()),
        "episode": (np.int64, ()),
        "action": (action_dtype, action.shape or ()),
        "observation": (observation.dtype, observation.shape),
        "final_observation": (observation.dtype, observation.shape),
        "action_mask": (np.bool_, (mask_size,)),
        "reward": (np.float32, ()),
        "terminated": (np.bool_, ()),
        "truncated": (np.bool_, ()),
        "valid": (np.bool_, ()),
    }
    places: _Places = {}
    offset = 0
    for field in fields(SharedArrays):
        kind, row = row_shapes[field.name]
        dtype, shape = np.dtype(kind), (num_envs, *row)
        places[field.name] = (dtype, shape, offset)
        size_bytes = math.prod(shape) * dtype.itemsize
        offset += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return places, offset


def packed(make: Callable[..., Any], name: str) -> bytes:
    """`make` for a child process. Raises InvalidInput if something that it holds cannot leave this
    process."""
    import cloudpickle

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
    import cloudpickle

    sys.path += [path for path in import_path if path not in sys.path]
    make: Callable[..., Any] = cloudpickle.loads(data)
    return make
