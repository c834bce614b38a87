"""Services that start with torch imported: processes of the standard library's fork server.

Importing torch takes 2 s of CPU time and hundreds of megabytes per process. The fork server imports
it once, in an environment without Podracer's settings, and has one thread. Each process forked from
it becomes one service, in its own session and with the environment it is given. Processes that run
users' code are never forked from it."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import multiprocessing.connection
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from multiprocessing import forkserver, reduction
from pathlib import Path
from typing import Any

from podracer_core.errors import Unavailable
from podracer_core.native import NATIVE_SETTINGS
from podracer_platform.service.lifetime import PARENT_VARIABLE, exit_with_parent

logger = logging.getLogger(__name__)

_SERVER = "podracer_platform.service.warm_start_server"
_MODULES = (
    *(
        "torch",
        "protovalidate",
        "podracer_core.environments.registry",
        "podracer_core.algorithms.ppo",
    ),
    *("podracer_learner.server", "podracer_learner.loop"),
    *("podracer_worker.server", "podracer_worker.session"),
    *("podracer_evaluator.server", "podracer_evaluator.session"),
)
_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's library starts its threads when it is imported, and a process with threads must not be
forked."""
_PR_SET_NAME = 15
_ARG_START, _ARG_END = 48, 49
"""Fields of /proc/<pid>/stat (proc_pid_stat(5)): where the command line lies in the process's
memory."""

_context = multiprocessing.get_context("forkserver")
_lock = threading.Lock()
_running = False


def start_server(folder: str | None = None) -> None:
    """Start this process's fork server, which imports torch while the caller continues.

    `folder` holds its socket; it must be a folder that is removed even if this process is killed.
    Call it from the main thread, whose end ends the server, and before other threads start: it
    changes this process's environment for a moment. Without a server (only Linux has one)
    `is_running` stays false."""
    global _running  # noqa: PLW0603 - the standard library has one fork server a process
    if sys.platform != "linux" or _running:
        return
    _context.set_forkserver_preload([_SERVER, *_MODULES])
    own = dict(os.environ)
    others = {name: value for name, value in own.items() if not name.startswith("PODRACER_")}
    _replace_environment(NATIVE_SETTINGS | others | _THREADS | {PARENT_VARIABLE: str(os.getpid())})
    own_folder, tempfile.tempdir = tempfile.tempdir, folder
    try:
        forkserver.ensure_running()
        _running = True
    except OSError as error:  # the folder is not there, or its path too long for a socket
        logger.warning("each process of a pod imports torch by itself: %s", error)
    finally:
        _replace_environment(own)
        tempfile.tempdir = own_folder


def is_running() -> bool:
    """Whether the server runs and can start processes."""
    return _running


class WarmProcess:
    """One service, with the part of the interface of `subprocess.Popen` that its supervisor needs.

    It ends with the fork server, which ends with the process that started it, even if that is
    killed."""

    def __init__(
        self, module: str, environment: Mapping[str, str], stdout: int, stderr: int
    ) -> None:
        """Fork the process, which runs `python -m module`. Waits until the server has imported
        torch.

        Raises Unavailable if the server has ended: it does not start again.
        """
        global _running  # noqa: PLW0603
        arguments = (module, dict(environment), _Descriptor(stdout), _Descriptor(stderr))
        # no exit waits for it
        self._process = _context.Process(target=_become, args=arguments, daemon=True)
        with _lock:
            try:
                self._process.start()
            except (OSError, EOFError) as error:
                _running = False
                raise Unavailable("the fork server has gone", reason="NO_FORK_SERVER") from error

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "it was started above"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The return code as in `subprocess.Popen`; None while the process runs."""
        with _lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its return code.

        Raises subprocess.TimeoutExpired if it still runs after `timeout` seconds.
        """
        multiprocessing.connection.wait([self._process.sentinel], timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self._process.terminate()


class _Descriptor:
    """A file descriptor as an argument of the forked process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (reduction.DupFd(self._number),)


def _detach(duplicate: Any) -> int:
    return int(duplicate.detach())


def _become(module: str, environment: Mapping[str, str], stdout: int, stderr: int) -> None:
    """Behave as `python -m module` in the forked process."""
    server = sys.modules[_SERVER]
    exit_with_parent(server.PID)
    os.setsid()
    _replace_environment(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, own in enumerate((nothing, stdout, stderr)):
        os.dup2(own, number)
        os.close(own)
    _show_as(module)
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _show_as(module: str) -> None:
    """Show `python -P -m module` in `ps`, `top` and `pgrep -f` instead of the server's command
    line."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, module.encode(), 0, 0, 0)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (_ARG_START, _ARG_END))
    words = "\0".join([sys.executable, "-P", "-m", module]).encode()[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, words, len(words))


def _replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
