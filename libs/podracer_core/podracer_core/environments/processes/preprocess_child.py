"""The process that runs a user's environments for `PreprocessVecEnv`.

    python -m podracer_core.environments.processes.preprocess_child SOCKET_FD MEMORY_FD SPINS

It answers messages (see `channel`), one for each command, and shares arrays with its parent. It
imports torch only if the user's environment is a batched one.

    {"command": "open", "environment": {…}, "count": 32, "pictures": false}
                            -> {"made": 1} after each environment, and then the spaces,
                               the time limit and more, see `Rows.describe`
                                 its payload, if any: see `exchange.packed`
    {"command": "trace"}    -> {"shape": [101, 6]} and what row 0 shows, see `Rows.trace`
    {"command": "inspect"}  -> `Checker.report`, or the environment's fault
    {"command": "find_masks"}
                            -> {"mask_size": 6}; 0 without action masks
    {"command": "map", "num_envs": 64, "first": 32, "mask_size": 6}
                            -> {}; rows first … first + count - 1 are its own
    {"command": "start"}    -> {} (or as a step); a new episode in every row, numbered by `episode`
    {"command": "set_ages"} and a number for each row, int64
                            -> {"possible": true}; their episodes count as that many steps old
    {"command": "play_once"}
                            -> {"possible": true}; a row stands still from the end of its episode
                               to the next start
    {}                      -> {}; acts once in every row. Where something broke:
                               {"breaks": [the fields of `Break`]}
    {"command": "frame"}    -> {"shape": [400, 600, 3]} and the bytes of the picture
    {"command": "state"}    -> {} and the state of a batched environment; "load_state"
                               takes such a payload

A failure answers {"error": {"kind": "user_code" or "invalid", "message": …, "traceback": …}}.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from numpy.typing import NDArray

from podracer_core.box import IN_BOX
from podracer_core.environments.processes.exchange import PROGRESS, Channel, unpacked
from podracer_core.environments.processes.gymnasium_rows import (
    VARIABLE,
    EnvironmentIndex,
    open_gymnasium,
)
from podracer_core.environments.processes.rows import Rows, describe_error
from podracer_core.errors import InvalidInput

_CLOSING_S = 2.0

_Answer = tuple[dict[str, Any], bytes]
_NOTHING: dict[str, Any] = {}


class Server:
    """Some rows of the batch, once they are open, and the commands for them."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._opened: Rows | None = None
        self.tell: Callable[[int], None] = lambda made: None

    @property
    def doing(self) -> str:
        """The current activity of the user's code, for the message if it fails."""
        return "construction" if self._opened is None else self._opened.doing

    def answer(self, message: dict[str, Any], payload: bytes) -> _Answer:
        """Run the command of a message."""
        if not message:
            self.rows.step()
            return self._broken(), b""
        match message.pop("command"):
            case "open":
                return self.open(partial(_open_rows, **message, code=payload, tell=self.tell)), b""
            case "inspect":
                return self.rows.inspect(), b""
            case "find_masks":
                return {"mask_size": self.rows.mask_size()}, b""
            case "map":
                self.rows.map(self._memory, **message)
                # mapped now, and out of the reach of code that writes to any descriptor
                os.close(self._memory)
            case "start":
                self.rows.start()
                return self._broken(), b""
            case "set_ages":
                return {"possible": self.rows.set_ages(payload)}, b""
            case "play_once":
                return {"possible": self.rows.play_once()}, b""
            case "frame" | "trace" as name:
                array: NDArray[Any] = getattr(self.rows, name)()
                return {"shape": array.shape}, array.tobytes()
            case "state":
                return {}, self.rows.state()
            case "load_state":
                self.rows.load_state(payload)
        return _NOTHING, b""

    def open(self, make: Callable[[], Rows]) -> dict[str, Any]:
        """Have the rows that `make` makes; what they say of themselves, with the seconds of that,
        `start_s`."""
        began = time.monotonic()
        self._opened = make()
        return {**self._opened.describe(), "start_s": time.monotonic() - began}

    def close(self) -> None:
        """Let the user's code clean up."""
        if self._opened is not None:
            self._opened.close()

    def _broken(self) -> dict[str, Any]:
        """The answer to a step: empty if nothing has broken."""
        noted = self.rows.breaks.take()
        return {"breaks": noted} if noted else _NOTHING

    @property
    def rows(self) -> Rows:
        """The rows. Raises InvalidInput if they are not open."""
        if self._opened is None:
            raise InvalidInput("open must come first")
        return self._opened


def serve(channel: Channel, server: Server) -> None:
    """Answer messages until the other side hangs up."""
    server.tell = lambda made: channel.send({PROGRESS: made})
    while True:
        message, payload = channel.receive()
        try:
            answer, payload = server.answer(message, payload)
        except InvalidInput as error:
            answer = {"error": {"kind": "invalid", "message": error.message, "traceback": ""}}
            payload = b""
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything; it is reported, not hidden
            answer, payload = {"error": _describe(error, server.doing)}, b""
        channel.send(answer, payload)


def _describe(error: BaseException, doing: str) -> dict[str, str]:
    message, text = describe_error(error)
    if what_to_do := hint(error):
        message = f"{message.rstrip('.')}; {what_to_do}"
    return {"kind": "user_code", "message": f"{doing} raised {message}", "traceback": text}


def hint(error: BaseException) -> str:
    """A sentence for a file that is not here, a missing module, or what the box refuses; empty for
    other errors."""
    if IN_BOX in os.environ and (advice := _box_advice(error)):
        return advice
    if isinstance(error, FileNotFoundError):
        named = re.match(r"(\S+) not found", str(error))  # as NumPy says it
        file = Path(str(error.filename or (named[1] if named else "/")))
        if not file.is_absolute():
            beside = f'Path(__file__).parent / "{file.name}"'
            ways = f"put the file beside your module and open {beside}, or name it under `data`"
            return f"a relative path is right in one folder only: {ways}"
        if str(file.parent) in sys.path:
            return (
                "only what `environment.code` names is sent here: name the folder that holds "
                "this file"
            )
    if isinstance(error, ModuleNotFoundError):
        # late: it takes 100 ms
        from podracer_core.catalogue import install_advice

        top = (error.name or getattr(error.__cause__, "name", None) or "it").partition(".")[0]
        return (
            install_advice(top)
            or f"install {top}, or name the folder that holds it under `environment.code`"
        )
    return ""


def _box_advice(error: BaseException) -> str:
    """A sentence for what the box refuses, also where a library has raised another error because of
    that."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror) or (
            isinstance(cause, PermissionError) and cause.filename is None
        ):
            why = (
                "an environment has no network, unless its job says `environment: {network: "
                "true}`, and no /dev/shm"
            )
            return f"{why}, which locks of multiprocessing need"
        if isinstance(cause, PermissionError):
            return (
                "it reads its own code and `data` only, and writes into its working folder "
                "(tempfile.gettempdir())"
            )
        cause = cause.__cause__ or cause.__context__
    return ""


def _exit_with_parent(connection: int) -> None:
    """Wait until the other side closes its end of the socket, then end this process and all that
    the user's code has started, even in the middle of an operation."""
    hang_up = select.poll()
    hang_up.register(connection, getattr(select, "POLLRDHUP", 0))
    hang_up.poll()
    time.sleep(_CLOSING_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main(descriptor: int, memory: int, spins: bool) -> None:
    """Serve until the parent closes its socket."""
    # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # what user code prints must not mix with the output of the command that started us
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the last lines before a crash say most
    for inherited in (descriptor, memory):
        # what user code starts would keep the socket open after our death
        os.set_inheritable(inherited, False)
    connection = socket.socket(fileno=descriptor)
    threading.Thread(target=_exit_with_parent, args=(descriptor,), daemon=True).start()
    server = Server(memory)
    with contextlib.suppress(ConnectionError):  # the parent is gone
        serve(Channel(connection, spins=spins), server)
    server.close()


_PROTOCOL = "podracer_core.environments.vec_environment"


def _open_rows(
    environment: dict[str, Any], count: int, pictures: bool, tell: Callable[[int], None],
    code: bytes = b"", import_path: Sequence[str] = (),
) -> Rows:  # fmt: skip
    """`count` rows of what `EnvironmentSpec.to_json` describes, able to draw `pictures` of the
    first if requested.

    `tell`: see `open_gymnasium`. `code`: the class or function itself, packed, from a process with
    this `import_path`."""
    index = EnvironmentIndex()  # until the end of this process
    os.environ[VARIABLE] = str(index.number)
    limit: int | None = environment["max_episode_steps"]
    if code:
        loaded = unpacked(code, import_path)
    elif environment["id"]:
        loaded = partial(
            gymnasium.make, environment["id"], max_episode_steps=limit, disable_env_checker=True
        )
    else:
        loaded = _load(environment["entry_point"], environment["code_path"])
    if _is_batched(loaded):
        # Late: torch takes seconds and memory that an environment which does without should not pay
        # for.
        batched_rows = importlib.import_module("podracer_core.environments.processes.batched_rows")
        rows: Rows = batched_rows.BatchedRows(loaded, count, environment["kwargs"], limit)
        return rows
    return open_gymnasium(loaded, environment, count, pictures, first=index, tell=tell)


def _load(entry_point: str, code_path: str) -> Any:
    """The object named by `entry_point`, with `code_path` importable (in this process only)."""
    if code_path and code_path not in sys.path:
        if not Path(code_path).is_dir():
            raise InvalidInput(f"the code folder {code_path!r} does not exist", code_path=code_path)
        module = re.split(r"[.:]", entry_point, maxsplit=1)[0]
        if module in sys.modules:
            place = getattr(sys.modules[module], "__file__", None) or "Python itself"
            raise InvalidInput(
                f"another module {module} is there already, from {place}: give yours another name"
            )
        sys.path.insert(0, code_path)
    return pkgutil.resolve_name(entry_point)


def _is_batched(loaded: Any) -> bool:
    """Whether it is a VecEnvironment: only then has it imported that module itself, and torch with
    it."""
    protocol = sys.modules.get(_PROTOCOL)
    return (
        protocol is not None
        and isinstance(loaded, type)
        and issubclass(loaded, protocol.VecEnvironment)
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1")
