"""Where servers are, with which token and certificates: connections, and contexts, which are
servers by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from podracer_client.files import write_private
from podracer_core.errors import InvalidInput, NotFound
from podracer_platform.rpc.tokens import FileToken, TokenSource

if TYPE_CHECKING:
    from podracer_platform.rpc.tls import TlsMaterial

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
