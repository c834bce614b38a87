"""Where servers are, with which token and certificates: given, in the environment, in a state
folder, in a context (servers by name), or in a cluster, through kubectl with the user's rights."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from podracer_client.files import write_private
from podracer_core.errors import InvalidInput, NotFound, Unavailable
from podracer_platform.rpc import FileToken, TokenSource

if TYPE_CHECKING:
    from podracer_client.processes import ManagedProcess
    from podracer_platform.rpc import TlsMaterial

CONTEXT_VARIABLE = "PODRACER_CONTEXT"
ORCHESTRATOR_VARIABLE = "PODRACER_ORCHESTRATOR"
LEADERBOARD_VARIABLE = "PODRACER_LEADERBOARD"
TOKEN_VARIABLE = "PODRACER_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "PODRACER_TOKEN_FILE"  # noqa: S105
TLS_VARIABLE = "PODRACER_TLS"
DEFAULT_FOLDER = Path("runs")
FILE_NAME = "connection.json"


@dataclass(frozen=True, slots=True)
class Connection:
    """Addresses of orchestrator and leaderboard (empty if unknown), the client's token, and with
    TLS its certificate or the folder with it. `close` ends the processes that forward ports, if
    any."""

    orchestrator: str
    leaderboard: str
    token: TokenSource
    tls: Path | TlsMaterial | None = None
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class ConnectionFile:
    """The file that `podracer up` and `podracer run` write into their state folder for other
    terminals."""

    orchestrator: str
    leaderboard: str
    token_file: str
    pid: int

    def write(self, folder: Path) -> Path:
        """Write the file atomically, readable by this user only."""
        path = folder / FILE_NAME
        values = {name: getattr(self, name) for name in self.__slots__}
        write_private(path, f"{json.dumps(values, indent=2)}\n".encode())
        return path

    @classmethod
    def read(cls, folder: Path) -> ConnectionFile:
        """Raises NotFound if there is no file, InvalidInput if it cannot be read or is
        malformed."""
        path = folder / FILE_NAME
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{name: type_(values[name]) for name, type_ in _FIELDS.items()})
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _no_server(folder) from error
        except OSError as error:
            raise InvalidInput(
                f"cannot read {path}: {error.strerror}", reason="UNREADABLE_FILE", path=path
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{path} is not a connection file of podracer", path=path) from error

    @classmethod
    def connection(cls, folder: Path) -> Connection:
        """The servers that run for a state folder now. Raises NotFound if none do, InvalidInput as
        `read`."""
        file = cls.read(folder)
        try:
            os.kill(file.pid, 0)
        except ProcessLookupError as error:  # the launcher was killed and could not remove its file
            raise _no_server(folder) from error
        except PermissionError:
            pass  # it lives, and is another user's
        return Connection(file.orchestrator, file.leaderboard, FileToken(Path(file.token_file)))


def _no_server(folder: Path) -> NotFound:
    option = "" if folder == DEFAULT_FOLDER else f" --dir {folder}"
    return NotFound(
        f"no server runs for the state folder {folder}; start one with `podracer up{option}`, or "
        f"say where one is with --orchestrator, {ORCHESTRATOR_VARIABLE} or `podracer context add`",
        reason="NO_SERVER",
        folder=folder,
    )


_FIELDS = {"orchestrator": str, "leaderboard": str, "token_file": str, "pid": int}


def token_source(token: str | None, token_file: str | Path | None) -> TokenSource | None:
    """The source of a given token, or of a file's; None without either. Raises InvalidInput as
    FileToken."""
    if token:
        return lambda: token
    return FileToken(Path(token_file)) if token_file else None


@dataclass(frozen=True, slots=True)
class Place:
    """A place where Podracer runs: a namespace of a cluster and a kubectl context (empty: kubectl's
    current one); or addresses, the file with a client's token, and with TLS the folder with a
    certificate."""

    namespace: str = ""
    kube_context: str = ""
    orchestrator: str = ""
    leaderboard: str = ""
    token_file: str = ""
    tls: str = ""


@dataclass(slots=True)
class Contexts:
    """The contexts by name, and the name of the current one (empty: none)."""

    current: str = ""
    known: dict[str, Place] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Contexts:
        """Read the file; empty without a file. Raises InvalidInput if it cannot be read or is
        malformed."""
        try:
            values = json.loads(_path().read_text(encoding="utf-8"))
            return cls(
                values["current"], {name: Place(**place) for name, place in values["known"].items()}
            )
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"{_path()} is not a file of `podracer context`: {error}", path=_path()
            ) from error

    def write(self) -> Path:
        """Write the file. Raises InvalidInput if it cannot be written."""
        try:
            write_private(_path(), f"{json.dumps(asdict(self), indent=2)}\n".encode())
        except OSError as error:
            raise InvalidInput(f"cannot write {_path()}: {error.strerror}", path=_path()) from error
        return _path()

    def __getitem__(self, name: str) -> Place:
        """Raises InvalidInput for an unknown name."""
        if name not in self.known:
            known = (
                f"known are {', '.join(sorted(self.known))}"
                if self.known
                else "`podracer context set` makes one"
            )
            raise InvalidInput(f"there is no context {name}; {known}", reason="NO_CONTEXT")
        return self.known[name]


def _path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (
        (Path(folder) if folder else Path("~/.config").expanduser()) / "podracer" / "contexts.json"
    )


def find_connection(
    orchestrator: str | None = None,
    leaderboard: str | None = None,
    *,
    token: str | None = None,
    token_file: Path | None = None,
    tls: Path | None = None,
    folder: Path | None = None,
    context: str | None = None,
) -> Connection:
    """The servers to connect to. In this order: given servers, a given `folder`, PODRACER_*,
    servers that run in ./runs, the current context.

    Raises InvalidInput for a token that cannot be read, NotFound if no server is known, Unavailable
    if a cluster cannot be reached."""
    environment = {} if folder is not None else os.environ
    if (
        not orchestrator
        and not leaderboard
        and (context := context or environment.get(CONTEXT_VARIABLE))
    ):
        return _of_context(Contexts.read(), context, token_source(token, token_file), tls)
    orchestrator = orchestrator or environment.get(ORCHESTRATOR_VARIABLE, "")
    leaderboard = leaderboard or environment.get(LEADERBOARD_VARIABLE, "")
    source = token_source(token, token_file)
    if not orchestrator and not leaderboard:
        try:
            found = ConnectionFile.connection(folder or DEFAULT_FOLDER)
        except NotFound:
            contexts = Contexts.read()
            if folder is not None or not contexts.current:
                raise
            return _of_context(contexts, contexts.current, source, tls)
        return Connection(found.orchestrator, found.leaderboard, source or found.token, tls)
    if tls is None and (set_tls := environment.get(TLS_VARIABLE)):
        tls = Path(set_tls)
    source = source or token_source(
        environment.get(TOKEN_VARIABLE), environment.get(TOKEN_FILE_VARIABLE)
    )
    if source is None and folder is not None:
        # no server of that folder runs: it has no bearing on the given one
        with suppress(NotFound):
            source = ConnectionFile.connection(folder).token
    if source is None:
        raise InvalidInput(
            f"no token for {orchestrator or leaderboard}: give --token-file, or set "
            f"{TOKEN_FILE_VARIABLE} or {TOKEN_VARIABLE}",
            reason="NO_TOKEN",
        )
    return Connection(orchestrator, leaderboard, source, tls)


def _of_context(
    contexts: Contexts, name: str, source: TokenSource | None, tls: Path | None
) -> Connection:
    place = contexts[name]
    if place.orchestrator:
        tls = tls or (Path(place.tls) if place.tls else None)
        return Connection(
            place.orchestrator, place.leaderboard, source or FileToken(Path(place.token_file)), tls
        )

    found = connect_through_kubectl(place)
    return found if source is None else replace(found, token=source)


TOKENS, CERTIFICATES = "podracer-tokens-client", "podracer-tls-client"
_READY_TIMEOUT_S = 90.0
"""kubectl itself waits a minute for a pod that is starting."""
_STOP_S = 2.0
_END_WITH_PARENT = (
    "import os, sys; from podracer_platform.service import exit_with_parent_if_asked; "
    "exit_with_parent_if_asked(); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def connect_through_kubectl(place: Place) -> Connection:
    """Connect to the servers of a namespace, until the connection is closed. The key is held in
    memory only.

    Raises InvalidInput without kubectl, Unavailable with kubectl's message if it is refused or
    finds nothing."""
    from podracer_platform.rpc import TlsMaterial  # late: most commands need none

    if shutil.which("kubectl") is None:
        raise InvalidInput(
            "kubectl is not on PATH: a cluster is reached by it", reason="NO_KUBECTL"
        )
    context = ["--context", place.kube_context] if place.kube_context else []
    kubectl = ["kubectl", *context, "--namespace", place.namespace]
    secrets = _read_secrets(kubectl, place)
    token = _secret_entry(secrets, TOKENS, "client").decode().split()[0]
    tls = TlsMaterial(
        *(_secret_entry(secrets, CERTIFICATES, key) for key in ("ca.crt", "tls.crt", "tls.key"))
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podracer-kubectl-")))
        forwards = [
            _forward(kubectl, service, folder, stack) for service in ("orchestrator", "leaderboard")
        ]
        for process, _ in forwards:
            process.wait_ready(_READY_TIMEOUT_S)
        (_, orchestrator), (_, leaderboard) = forwards
        return Connection(orchestrator, leaderboard, lambda: token, tls, stack.pop_all().close)


def current_kube_context() -> str:
    """kubectl's current context; empty if it has none, as in a pod."""
    if shutil.which("kubectl") is None:
        return ""
    command = ["kubectl", "config", "current-context"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _read_secrets(kubectl: Sequence[str], place: Place) -> Mapping[str, Mapping[str, str]]:
    command = [
        *kubectl,
        "--request-timeout",
        "30s",
        "get",
        "secret",
        TOKENS,
        CERTIFICATES,
        "--output",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        where = f" of {place.kube_context}" if place.kube_context else ""
        message = (
            f"cannot read a client's Secrets in the namespace {place.namespace}{where}: "
            f"{done.stderr.strip()}"
        )
        raise Unavailable(message, reason="KUBECTL_FAILED")
    return {
        item["metadata"]["name"]: item.get("data", {}) for item in json.loads(done.stdout)["items"]
    }


def _secret_entry(secrets: Mapping[str, Mapping[str, str]], name: str, key: str) -> bytes:
    content = base64.b64decode(secrets[name].get(key, ""))
    if not content.strip():
        raise InvalidInput(f"the Secret {name} holds no {key}", reason="BAD_SECRET")
    return content


def _forward(
    kubectl: Sequence[str], service: str, folder: Path, stack: ExitStack
) -> tuple[ManagedProcess, str]:
    """Forward a local port to a service until `stack` ends it; returns the process and the port's
    address.

    If kubectl ends, because its pod or the API server is gone, it is started again with the same
    port."""
    from podracer_client.processes import FixedAddress, ManagedProcess, ProcessPlan

    fixed = stack.enter_context(closing(FixedAddress("127.0.0.1:0")))
    port = fixed.address.rpartition(":")[2]
    command = [
        *kubectl,
        "port-forward",
        "--address",
        "127.0.0.1",
        f"service/podracer-{service}",
        f"{port}:grpc",
    ]
    plan = ProcessPlan(
        name=f"kubectl port-forward to the {service}",
        command=(sys.executable, "-P", "-c", _END_WITH_PARENT, *command),
        environment=os.environ,
        log=folder / service,
        restarts=sys.maxsize,
        log_lasts=False,
        ready="Forwarding from ",
    )
    process = ManagedProcess(plan)
    process.start()
    stack.callback(process.stop, _STOP_S)
    return process, fixed.address
