"""The servers' addresses and the client's token, and the file in a state folder that holds them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podracer_client.files import write_private
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.rpc.tokens import FileToken, TokenSource

if TYPE_CHECKING:
    from podracer_core.rpc.tls import TlsMaterial

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
