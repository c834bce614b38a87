"""The state folder of this machine, and the services over it: all of them, those that read a folder
at rest, and an evaluator alone."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from podracer.evaluator.v1 import evaluator_service_pb2_grpc
from podracer_client.jobs import Client
from podracer_client.processes import (
    INTERRUPTED,
    FixedAddress,
    ManagedProcess,
    ProcessNews,
    ProcessPlan,
    RunFolder,
)
from podracer_client.servers import DEFAULT_FOLDER, FILE_NAME, Connection, ConnectionFile
from podracer_core.errors import FieldViolation, InvalidInput, NotFound, PreconditionFailed
from podracer_platform.rpc import FileToken, Role, create_tokens, open_channel


class StateFolder:
    """Locked while open: `with StateFolder.open(path) as state`.

    lock  connection.json  tokens/{client,pod,control}  orchestrator.sqlite  leaderboard.sqlite
    objects/  cache/  logs/
    traces/
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> Self:
        """Make the folder if it is missing, and lock it.

        Raises InvalidInput if it cannot be made or written, PreconditionFailed while another
        process has it, NotFound if it is missing and `create` is false."""
        path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would lose the user's symbolic link
        if not create and not path.is_dir():
            raise NotFound(
                f"there is no state folder {path}", reason="NO_STATE_FOLDER", folder=path
            )
        made = _make(path)
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            _unmake(made)
            raise _unwritable(path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(lock, 20).decode(errors="replace").strip()
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise _unwritable(path, error) from error
            raise PreconditionFailed(
                f"the state folder {path} is in use by process {owner or 'unknown'}; stop that "
                "one, or choose another --dir",
                reason="STATE_FOLDER_IN_USE",
                folder=path,
            ) from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        (path / FILE_NAME).unlink(missing_ok=True)  # of a launcher that was killed
        return cls(path, lock)

    @property
    def tokens(self) -> Path:
        return self.path / "tokens"

    @property
    def objects(self) -> Path:
        """The object store's root."""
        return self.objects_of(self.path)

    @staticmethod
    def objects_of(folder: Path) -> Path:
        """The object store's root in the state folder at `folder`, locked or not."""
        return folder / "objects"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def traces(self) -> Path:
        """Files of spans."""
        return self.traces_of(self.path)

    @staticmethod
    def traces_of(folder: Path) -> Path:
        """The folder of span files in the state folder at `folder`, locked or not."""
        return folder / "traces"

    @staticmethod
    def database_name(service: str) -> str:
        return f"{service}.sqlite"

    def database(self, service: str) -> Path:
        return self.path / self.database_name(service)

    def close(self) -> None:
        """Remove the connection file and release the lock."""
        (self.path / FILE_NAME).unlink(missing_ok=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _make(path: Path) -> list[Path]:
    """Make the folder and its parents; the ones that were not there, innermost last."""
    made: list[Path] = []
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file is there")
        for folder in reversed(missing):
            folder.mkdir(mode=0o777 if folder != path else 0o700)
            made.append(folder)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileExistsError:
        return made  # another process made it meanwhile
    except OSError as error:
        _unmake(made)
        raise _unwritable(path, error) from error
    return made


def _unmake(made: list[Path]) -> None:
    for folder in reversed(made):
        folder.rmdir()


def _unwritable(path: Path, error: OSError) -> InvalidInput:
    problem = f"cannot write the state folder {path}: {error.strerror}"
    violation = FieldViolation("--dir", problem)
    return InvalidInput(problem, violations=[violation], reason="UNWRITABLE_FOLDER", folder=path)


TRAINING = ("orchestrator", "leaderboard", "learner", "worker", "evaluator")
"""The services without which no job can train."""
READY_TIMEOUT_S = 60.0
STOP_S = 4.6
"""Time from SIGTERM until the last process has ended; the limit for the user is 5 s."""
_LEADERBOARD_SHARE_S = 0.6
_LEADERBOARD_AFTER_S = 0.5
_STOP_S = 2.0
_AT_REST = {"PODRACER_POOL": "static", "PODRACER_LEASE_TERM": "3600"}
"""Settings with which no pod is started, and leases that were held before stay unchanged."""
Connect = Callable[[], AbstractContextManager[Client]]
"""Returns a context manager of a client: Client's own `connect`, or one that keeps an open client
open."""
_EVALUATOR_STOP_S = 1.0


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of the services.

    orchestrator_listen, leaderboard_listen  where they listen; empty: on sockets of the run folder
    max_pods                                 0: as many as the machine has room for
    own_user_code                            fused pods start the user's own environments too
    """

    orchestrator_listen: str = ""
    leaderboard_listen: str = ""
    max_pods: int = 0
    own_user_code: bool = False


class LocalServices:
    """The two services of a state folder: `start`, `wait_ready`, `client`, `stop`. They start at
    the same time."""

    def __init__(
        self,
        state: StateFolder,
        run_folder: RunFolder,
        options: ServiceOptions | None = None,
        on_news: Callable[[ProcessNews], None] = lambda news: None,
    ) -> None:
        """Raises InvalidInput when the tokens cannot be written."""
        options = options or ServiceOptions()
        self._state = state
        self._client_token = create_tokens(state.tokens)[Role.CLIENT]
        self._orchestrator_at = FixedAddress(
            options.orchestrator_listen or run_folder.socket("orchestrator")
        )
        self._leaderboard_at = FixedAddress(
            options.leaderboard_listen or run_folder.socket("leaderboard")
        )
        listen, leaderboard_listen = self._orchestrator_at.address, self._leaderboard_at.address
        self.leaderboard = ManagedProcess(leaderboard_plan(state, leaderboard_listen), on_news)
        self.orchestrator = ManagedProcess(
            orchestrator_plan(state, run_folder, listen, leaderboard_listen, options), on_news
        )

    def start(self) -> None:
        """Start both, and return at once. The leaderboard is lighter, and first leaves the cores to
        the other."""
        self.orchestrator.start()
        self.leaderboard.start(after_s=_LEADERBOARD_AFTER_S)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> Connection:
        """Wait until both serve; then other terminals find them by the state folder's
        connection.json.

        Raises as `ManagedProcess.wait_ready`.
        """
        leaderboard = self.leaderboard.wait_ready(timeout_s)
        orchestrator = self.orchestrator.wait_ready(timeout_s)
        ConnectionFile(orchestrator, leaderboard, str(self._client_token), os.getpid()).write(
            self._state.path
        )
        return Connection(orchestrator, leaderboard, FileToken(self._client_token))

    def client(self) -> Client:
        """A client of the two, once they are ready."""
        return Client(self.wait_ready())

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End both within `timeout_s`: the orchestrator and its pods first, so that the last
        results are delivered."""
        deadline = time.monotonic() + timeout_s
        self.orchestrator.stop(timeout_s - _LEADERBOARD_SHARE_S)
        self.leaderboard.stop(max(0.1, deadline - time.monotonic()))

    def kill(self) -> None:
        """End both now; the pods end with the orchestrator. May be called from a signal handler."""
        self.orchestrator.kill()
        self.leaderboard.kill()


def require_services(*names: str) -> None:
    """Raises PreconditionFailed (NOT_INSTALLED) with the package to install, unless these services
    are installed; by default all that training needs."""
    if any(importlib.util.find_spec(f"podracer_{name}") is None for name in names or TRAINING):
        raise PreconditionFailed(
            "this command needs the extra `local`, which is not installed: pip install "
            "'podracer-client[local]'",
            reason="NOT_INSTALLED",
        )


def leaderboard_plan(state: StateFolder, listen: str) -> ProcessPlan:
    """How to start the leaderboard service of a state folder."""
    environment = _with_traces(inherited_environment(), state)
    # one address is one process's: the orchestrator's
    environment.pop("PODRACER_METRICS_LISTEN", None)
    return ProcessPlan(
        "leaderboard",
        (sys.executable, "-P", "-m", "podracer_leaderboard"),
        {
            **environment,
            "PODRACER_LISTEN": listen,
            "PODRACER_TOKENS": str(state.tokens),
            "PODRACER_DATABASE": f"sqlite:///{state.database('leaderboard')}",
        },
        state.logs / "leaderboard.log",
    )


def orchestrator_plan(
    state: StateFolder,
    run_folder: RunFolder,
    listen: str,
    leaderboard: str,
    options: ServiceOptions,
) -> ProcessPlan:
    """How to start the orchestrator service of a state folder."""
    environment = {
        **_with_traces(inherited_environment(), state),
        "PODRACER_LISTEN": listen,
        "PODRACER_TOKENS": str(state.tokens),
        "PODRACER_DATABASE": f"sqlite:///{state.database('orchestrator')}",
        "PODRACER_STORE": state.objects.as_uri(),
        "PODRACER_LEADERBOARD": leaderboard,
        "PODRACER_POOL": "local",
        "PODRACER_STATE_DIR": str(state.path),
        "PODRACER_RUN_DIR": str(run_folder.path),
    }
    if options.max_pods:
        environment["PODRACER_MAX_PODS"] = str(options.max_pods)
    if options.own_user_code:
        environment["PODRACER_OWN_USER_CODE"] = "true"
    # -P: the folder in which a user calls us holds modules of the user's.
    command = (sys.executable, "-P", "-m", "podracer_orchestrator")
    return ProcessPlan("orchestrator", command, environment, state.logs / "orchestrator.log")


def inherited_environment() -> dict[str, str]:
    """This process's environment for a service, without the variables of a *client*'s server and
    token."""
    client_only = (
        "PODRACER_ORCHESTRATOR",
        "PODRACER_LEADERBOARD",
        "PODRACER_TOKEN",
        "PODRACER_TOKEN_FILE",
    )
    return {name: value for name, value in os.environ.items() if name not in client_only}


def _with_traces(environment: dict[str, str], state: StateFolder) -> dict[str, str]:
    """Write spans to the state folder, unless the user has set PODRACER_TRACE_DIR (empty: no
    spans)."""
    return {"PODRACER_TRACE_DIR": str(state.traces), **environment}


def leave_at_once(services: LocalServices, state: StateFolder, run_folder: RunFolder) -> None:
    """End every process now, and this one; called from the signal handler."""
    services.kill()
    state.close()
    run_folder.remove()
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")  # the live table hides the cursor
    os._exit(INTERRUPTED)


def running_or_resting(
    connect: Connect, folder: Path | None, *, only_leaderboard: bool = False
) -> AbstractContextManager[Client]:
    """A client of the servers that `connect` finds; if none run, of a state folder (None: ./runs)
    at rest.

    For a folder at rest `only_leaderboard` starts one service instead of two. Raises NotFound if
    the folder was never used, other errors of `connect`, and as `resting_services`."""
    folder = folder or DEFAULT_FOLDER
    try:
        return connect()
    except NotFound:
        service = "leaderboard" if only_leaderboard else "orchestrator"
        if not (folder / StateFolder.database_name(service)).is_file():
            raise
    return resting_leaderboard(folder) if only_leaderboard else resting_services(folder)


@contextmanager
def _started(*plans: ProcessPlan, stop_s: float = _STOP_S) -> Iterator[list[str]]:
    """Start the processes; yields their addresses. They are stopped at the end, the last first."""
    processes = [ManagedProcess(plan) for plan in plans]
    for process in processes:
        process.start()
    try:
        yield [process.wait_ready(READY_TIMEOUT_S) for process in processes]
    finally:
        for process in reversed(processes):
            process.stop(stop_s)


@contextmanager
def resting_leaderboard(folder: Path) -> Iterator[Client]:
    """A client of the folder's leaderboard alone. Raises PreconditionFailed while another process
    has the folder."""
    with StateFolder.open(folder, create=False) as state, RunFolder() as run_folder:
        token = create_tokens(state.tokens)[Role.CLIENT]
        plan = leaderboard_plan(state, run_folder.socket("leaderboard"))
        with (
            _started(plan) as (address,),
            Client(Connection("", address, FileToken(token))) as client,
        ):
            yield client


@contextmanager
def resting_services(folder: Path) -> Iterator[Client]:
    """A client of the folder's orchestrator and leaderboard. Raises PreconditionFailed as
    `resting_leaderboard`.

    They write no connection.json, so that other commands do not find them.
    """
    with StateFolder.open(folder, create=False) as state, RunFolder() as run_folder:
        token = create_tokens(state.tokens)[Role.CLIENT]
        listen = {name: run_folder.socket(name) for name in ("leaderboard", "orchestrator")}
        plan = orchestrator_plan(
            state, run_folder, listen["orchestrator"], listen["leaderboard"], ServiceOptions()
        )
        plans = (
            leaderboard_plan(state, listen["leaderboard"]),
            replace(plan, environment={**plan.environment, **_AT_REST}),
        )
        with (
            _started(*plans) as (leaderboard, orchestrator),
            Client(Connection(orchestrator, leaderboard, FileToken(token))) as client,
        ):
            yield client


@contextmanager
def private_evaluator() -> Iterator[evaluator_service_pb2_grpc.EvaluatorServiceStub]:
    """Start an evaluator with its own socket and token, which may read this user's folders.

    Raises Unavailable if it cannot start, PreconditionFailed if it is not installed.
    """
    require_services("evaluator")
    with RunFolder() as run_folder:
        token = create_tokens(run_folder.path / "tokens")[Role.POD]
        plan = ProcessPlan(
            "evaluator",
            (sys.executable, "-P", "-m", "podracer_evaluator"),
            {
                **inherited_environment(),
                "PODRACER_LISTEN": run_folder.socket("evaluator"),
                "PODRACER_TOKENS": str(token.parent),
                "PODRACER_ALLOW_FOLDERS": "true",
                "PODRACER_CACHE_DIR": str(run_folder.path / "cache"),
            },
            run_folder.path / "evaluator.log",
            restarts=0,
            log_lasts=False,
        )
        with (
            _started(plan, stop_s=_EVALUATOR_STOP_S) as (address,),
            open_channel(address, FileToken(token)) as channel,
        ):
            yield evaluator_service_pb2_grpc.EvaluatorServiceStub(channel)
