"""Child processes: started, watched, ended; ports and unix sockets for them; and what an interrupt
of this process does."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Self

from podracer_core.errors import DeadlineExpired, PodracerError, Unavailable
from podracer_platform.rpc import Address, parse_address
from podracer_platform.service import End, SupervisedProcess, describe_exit, start_child

if TYPE_CHECKING:
    import psutil

LISTENING = "listening on "
"""The line on stdout, followed by the address, of a service that serves."""
_STARVED = 0.01
"""Part of a processor that a starting process gets at least on busy cores; one that waits for
something uses less."""
_LINE_CHARACTERS = 500
INTERRUPTED = 130
"""Exit code after an interrupt."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The process to start.

    `restarts`: how often in a row it may die early before it is given up. `log_lasts`: False if the
    log is removed with its folder; then no message names it. `ready`: the text on stdout before its
    address."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    restarts: int = 10
    log_lasts: bool = True
    ready: str = LISTENING

    @property
    def log_hint(self) -> str:
        return f"; its log: {self.log}" if self.log_lasts else ""


@dataclass(frozen=True, slots=True)
class ProcessNews:
    """An unexpected event of a process; `fatal` if it will not be started again."""

    name: str
    message: str
    fatal: bool = False


Inbox = SimpleQueue[ProcessNews | PodracerError | str | None]
"""News for which the main thread waits; None is an interrupt."""


class ManagedProcess(SupervisedProcess):
    """A process that says on stdout when it is ready, and at which address."""

    def __init__(
        self, plan: ProcessPlan, on_news: Callable[[ProcessNews], None] = lambda news: None
    ) -> None:
        """`on_news` is called from the process's thread, and from that of `wait_ready`."""
        super().__init__(plan.name, plan.log, self._start, self._goes_on)
        self._plan = plan
        self._on_news = on_news
        self._changed = threading.Condition()
        self._address = ""
        self._failure = ""
        self._reader: threading.Thread | None = None

    def wait_ready(self, timeout_s: float) -> str:
        """The address that it reports.

        After `timeout_s` it gets as long again while it computes: imports are slow on busy cores.
        Raises Unavailable if it cannot start; DeadlineExpired if it computes no more, or has used
        `timeout_s` of a processor."""
        used_s = 0.0
        while not self._has_answered(timeout_s):
            before_s, used_s = used_s, self._processor_seconds()
            if not before_s + _STARVED * timeout_s < used_s < timeout_s:
                raise DeadlineExpired(
                    f"the {self.name} was not ready within {timeout_s:g} s{self._plan.log_hint}"
                )
            message = (
                f"the {self.name} is still starting: it got {used_s:.1f} s of a processor so far"
            )
            self._on_news(ProcessNews(self.name, message))
        if self._failure:
            raise Unavailable(self._failure, reason="PROCESS_FAILED", process=self.name)
        return self._address

    def _has_answered(self, timeout_s: float) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._address or self._failure, timeout_s))

    def _processor_seconds(self) -> float:
        """The processor time that it has used; 0 if it does not run."""
        import psutil  # late: only a slow start needs it

        with suppress(psutil.Error):
            if (pid := self.pid) is not None:
                return sum(psutil.Process(pid).cpu_times()[:2])
        return 0.0

    def _start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        plan = self._plan
        process = start_child(plan.command, plan.environment, subprocess.PIPE, log)
        assert process.stdout is not None, "asked for as a pipe above"
        self._reader = threading.Thread(
            target=self._read, args=(process.stdout,), name=f"stdout-{self.name}", daemon=True
        )
        self._reader.start()
        return process

    def _read(self, stdout: IO[bytes]) -> None:
        ready = self._plan.ready
        with stdout, self._plan.log.open("a", encoding="utf-8") as log:
            for line in io.TextIOWrapper(stdout, errors="replace"):
                if line.startswith(ready):
                    with self._changed:
                        self._address = line.removeprefix(ready).strip()
                        self._changed.notify_all()
                else:
                    log.write(line)
                    log.flush()

    def _goes_on(self, end: End, early_deaths: int) -> bool:
        if self._reader is not None:
            self._reader.join(0.2)  # a grandchild may hold the pipe open
        if isinstance(end, OSError):
            why = f"{end.filename or self._plan.command[0]}: {end.strerror}"
        else:
            why = describe_exit(end)
        if self._address and early_deaths <= self._plan.restarts:
            message = f"the {self.name} ended ({why}); starting it again"
            self._on_news(ProcessNews(self.name, message))
            return True
        verb = "ended too often" if self._address else "could not start"
        lines = [line.strip() for line in self.log_tail().splitlines() if line.strip()]
        last = f": {lines[-1][:_LINE_CHARACTERS]}" if lines else ""
        failure = f"the {self.name} {verb} ({why}){last}{self._plan.log_hint}"
        with self._changed:
            self._failure = failure
            self._changed.notify_all()
        self._on_news(ProcessNews(self.name, failure, fatal=True))
        return False


class Interrupts:
    """While open, the first signal calls `on_first`, any further one `on_second`; both on the main
    thread.

    Nothing is raised into the code that is running: `on_first` leaves a message that it looks for.
    """

    def __init__(self, on_first: Callable[[], None], on_second: Callable[[], None]) -> None:
        self._on_first = on_first
        self._on_second = on_second
        self._former: dict[signal.Signals, Any] = {}
        self.received = False

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._former[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            self._on_second()
        else:
            self.received = True
            self._on_first()


def serve_until_interrupted(inbox: Inbox, wait_ready: Callable[[], str]) -> int:
    """Print the result of `wait_ready`, called in a thread, to stdout, and news of processes to
    stderr; returns the exit code after an interrupt.

    Raises the errors of `wait_ready`, and Unavailable if a process dies repeatedly.
    """

    def announce() -> None:
        try:
            inbox.put(wait_ready())
        except PodracerError as error:
            inbox.put(error)

    threading.Thread(target=announce, name="ready", daemon=True).start()
    while (message := inbox.get()) is not None:
        match message:
            case str():
                sys.stdout.write(message)
                sys.stdout.flush()
            case ProcessNews(fatal=True):
                raise Unavailable(message.message, reason="PROCESS_FAILED")
            case ProcessNews():
                sys.stderr.write(f"{message.message}\n")
            case PodracerError():
                raise message
    return INTERRUPTED


_HIGHEST = 65535


class FixedAddress:
    """An address whose port stays the same, so that a restarted service is found again.

    Port 0 is replaced by a free one. On Linux it stays reserved while this object lives: its socket
    is bound and does not listen, so that a server may listen there and the system gives the port to
    no other process."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._reservation: socket.socket | None = None
        parsed = parse_address(address)
        if parsed.is_unix or parsed.port:
            return
        self._reservation = _bound(parsed)
        self.address = str(parsed.with_port(self._reservation.getsockname()[1]))
        if not Path("/proc/net/tcp").exists():
            self._reservation.close()

    def close(self) -> None:
        """Give the port back."""
        if self._reservation is not None:
            self._reservation.close()


def free_ports(address: Address, count: int) -> list[Address]:
    """Addresses of the same host, with the first free ports above its own."""
    found: list[Address] = []
    for port in range(address.port + 1, _HIGHEST + 1):
        candidate = address.with_port(port)
        with suppress(OSError):
            with _bound(candidate) as probe:
                probe.listen(1)
            found.append(candidate)
        if len(found) == count:
            break
    return found


def listener_of(port: int) -> str:
    """The process that listens on a port, for a message: `process 4242, the Podracer of
    /home/a/runs`.

    Empty where the system does not tell: another user's process, or macOS.
    """
    import psutil  # late: only this message needs it

    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            is_at_port = connection.laddr and connection.laddr.port == port
            if is_at_port and connection.status == psutil.CONN_LISTEN and connection.pid:
                return describe_process(psutil.Process(connection.pid))
    return ""


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address.host, address.port))
    except OSError:
        probe.close()
        raise
    return probe


def describe_process(process: psutil.Process) -> str:
    """A process in words for a message; one of ours with its state folder."""
    if not any(word.startswith("podracer_") for word in process.cmdline()):
        return f"process {process.pid} ({process.name()})"
    database = Path(process.environ().get("PODRACER_DATABASE", "").removeprefix("sqlite:///"))
    folder = f", the Podracer of {database.parent}" if database.is_absolute() else " (Podracer)"
    return f"process {process.pid}{folder}"


PREFIX = "podracer-"
_LONGEST_PARENT_BYTES = 30
"""Below it must fit `podracer-xxxxxxxx/<pod>/evaluator.sock`, and a unix socket's path has 103
bytes on macOS."""

_LOCK = "lock"
_YOUNG_S = 60.0


class RunFolder:
    """A temporary folder, made on creation (mode 0700), removed by `remove` or at the end of a
    `with`.

    It is locked while its process lives. One whose process was killed is removed when the next one
    is made."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > _LONGEST_PARENT_BYTES:
            parent = "/tmp"
        _remove_left_overs(Path(parent))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def socket(self, name: str) -> str:
        """The address of a server's socket in this folder."""
        return f"unix://{self.path / name}.sock"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def _remove_left_overs(parent: Path) -> None:
    """Remove this user's run folders that are not locked; young ones may be about to be."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # not ours, in use, or another process is removing it too
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
