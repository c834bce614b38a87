"""Child processes: started, watched, ended; ports and unix sockets for them; and what an interrupt
of this process does."""

from __future__ import annotations

import fcntl
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
from podracer_platform.rpc import Address, Backoff, parse_address
from podracer_platform.service import PARENT_VARIABLE

if TYPE_CHECKING:
    import psutil

LISTENING = "listening on "
"""The line on stdout, followed by the address, of a service that serves."""
_RESTART_INITIAL_S = 0.1
_RESTART_MAXIMUM_S = 5.0
_HEALTHY_AFTER_S = 20.0
_STARVED = 0.01
"""Part of a processor that a starting process gets at least on busy cores; one that waits for
something uses less."""
_TAIL_BYTES = 8192
_TAIL_CHARACTERS = 500
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


class ManagedProcess:
    """Starts a process, waits for its address, starts it again when it dies, stops it.

    A thread of its own starts the process and lives as long as it does: on Linux the kernel ties a
    child that asked for it (`podracer_platform.service.lifetime`) to the *thread* that started
    it."""

    def __init__(
        self, plan: ProcessPlan, on_news: Callable[[ProcessNews], None] = lambda news: None
    ) -> None:
        """`on_news` is called from the process's thread, and from that of `wait_ready`."""
        self._plan = plan
        self._on_news = on_news
        self._changed = threading.Condition()
        self._address = ""
        self._failure = ""
        self._process: subprocess.Popen[str] | None = None
        self._stopping = False
        self._after_s = 0.0
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_running, name=f"process-{plan.name}", daemon=True
        )

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def pid(self) -> int | None:
        """The process id now, None between two starts."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self, after_s: float = 0.0) -> None:
        """Start it in `after_s` seconds. Returns at once."""
        self._after_s = after_s
        self._thread.start()

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

    def terminate(self) -> None:
        """Ask it to end, and do not restart it. Returns at once."""
        self._stopping = True
        process = self._process
        if process is not None:
            process.terminate()
        self._wake.set()

    def kill(self) -> None:
        """End it and its process group now. Returns at once; takes no lock, so that a signal
        handler may call it."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended after at most `timeout_s`; only after `terminate` or `kill`."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def stop(self, grace_s: float) -> None:
        """Terminate it, and kill it if it still runs after `grace_s`."""
        self.terminate()
        if not self.join(grace_s):
            self.kill()
            self.join(1.0)

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

    def _is_stopping(self) -> bool:
        return self._stopping  # another thread sets it, at any time

    def _keep_running(self) -> None:
        backoff = Backoff(_RESTART_INITIAL_S, _RESTART_MAXIMUM_S, jitter=0.5)
        young_deaths = 0
        self._wake.wait(self._after_s)
        while not self._is_stopping():
            started = time.monotonic()
            end = self._run_once()
            if self._is_stopping():
                return
            if time.monotonic() - started > _HEALTHY_AFTER_S:
                young_deaths = 0
                backoff.reset()
            young_deaths += 1
            if not self._address or young_deaths > self._plan.restarts:
                self._give_up(end)
                return
            self._on_news(
                ProcessNews(self.name, f"the {self.name} ended ({end}); starting it again")
            )
            self._wake.wait(next(backoff))

    def _run_once(self) -> str:
        """Start it, wait until it ends, and report how."""
        self._plan.log.parent.mkdir(parents=True, exist_ok=True)
        with self._plan.log.open("ab") as log:
            self._log_start = log.tell()
            try:
                process = subprocess.Popen(
                    self._plan.command,
                    env={**self._plan.environment, PARENT_VARIABLE: str(os.getpid())},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            except OSError as error:
                return f"{self._plan.command[0]}: {error.strerror}"
        self._process = process
        if self._is_stopping():  # it was asked for while the process started
            process.terminate()
        assert process.stdout is not None, "asked for as a pipe above"
        reader = threading.Thread(
            target=self._read, args=(process.stdout,), name=f"stdout-{self.name}", daemon=True
        )
        reader.start()
        code = process.wait()
        reader.join(0.2)  # a grandchild may hold the pipe open
        return _describe_exit(code)

    def _read(self, stdout: IO[str]) -> None:
        with stdout, self._plan.log.open("a", encoding="utf-8") as log:
            for line in stdout:
                if line.startswith(self._plan.ready):
                    with self._changed:
                        self._address = line.removeprefix(self._plan.ready).strip()
                        self._changed.notify_all()
                else:
                    log.write(line)
                    log.flush()

    def _give_up(self, end: str) -> None:
        verb = "ended too often" if self._address else "could not start"
        last = _last_line(self._plan.log, self._log_start)
        failure = f"the {self.name} {verb} ({end}){': ' if last else ''}{last}{self._plan.log_hint}"
        with self._changed:
            self._failure = failure
            self._changed.notify_all()
        self._on_news(ProcessNews(self.name, failure, fatal=True))


def _describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _last_line(log: Path, start: int) -> str:
    """The last line that has text after byte `start`, cut to a message's length."""
    with log.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")[:_TAIL_CHARACTERS]


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
