"""Where the servers are and with which token: given, in the environment, in a state folder or in a context."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from podracer_client.contexts import Contexts
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
    """Addresses of orchestrator and leaderboard (empty where it is not known), the client's token, and its certificate,
    or the folder with it, where they speak TLS. `close` ends what keeps them reachable."""

    orchestrator: str
    leaderboard: str
    token: TokenSource
    tls: Path | TlsMaterial | None = None
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class ConnectionFile:
    """What `podracer up` and `podracer run` leave in their state folder for other terminals."""

    orchestrator: str
    leaderboard: str
    token_file: str
    pid: int

    def write(self, folder: Path) -> Path:
        """Write it (mode 0600), whole or not at all."""
        path, draft = folder / FILE_NAME, folder / f".{FILE_NAME}.{os.getpid()}"
        values = {name: getattr(self, name) for name in self.__slots__}
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(values, indent=2) + "\n")
        return draft.replace(path)

    @classmethod
    def read(cls, folder: Path) -> ConnectionFile:
        """Raises NotFound when there is none, InvalidInput when it cannot be read or is not one."""
        path = folder / FILE_NAME
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{name: type_(values[name]) for name, type_ in _FIELDS.items()})
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _no_server(folder) from error
        except OSError as error:
            raise InvalidInput(f"cannot read {path}: {error.strerror}", reason="UNREADABLE_FILE", path=path) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{path} is not a connection file of podracer", path=path) from error

    @classmethod
    def connection(cls, folder: Path) -> Connection:
        """The servers that run for a state folder now. Raises NotFound when none do, InvalidInput as `read`."""
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
        f"no server runs for the state folder {folder}; start one with `podracer up{option}`, or say where one is with "
        f"--orchestrator, {ORCHESTRATOR_VARIABLE} or `podracer context add`",
        reason="NO_SERVER",
        folder=folder,
    )


_FIELDS = {"orchestrator": str, "leaderboard": str, "token_file": str, "pid": int}


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
    """The servers to talk to: what is given wins, then a given `folder`, then PODRACER_*, then what runs in ./runs,
    then the current context.

    Raises InvalidInput for a token that cannot be read, NotFound where no server is known, Unavailable for a cluster
    that cannot be reached.
    """
    environment = {} if folder is not None else os.environ
    if not orchestrator and not leaderboard and (context := context or environment.get(CONTEXT_VARIABLE)):
        return _of_context(Contexts.read(), context, token_source(token, token_file))
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
            return _of_context(contexts, contexts.current, source)
        return Connection(found.orchestrator, found.leaderboard, source or found.token, tls)
    if tls is None and (set_tls := environment.get(TLS_VARIABLE)):
        tls = Path(set_tls)
    source = source or token_source(environment.get(TOKEN_VARIABLE), environment.get(TOKEN_FILE_VARIABLE))
    if source is None and folder is not None:
        with suppress(NotFound):  # no server of that folder runs: it says nothing of the one that is given
            source = ConnectionFile.connection(folder).token
    if source is None:
        raise InvalidInput(
            f"no token for {orchestrator or leaderboard}: give --token-file, or set {TOKEN_FILE_VARIABLE} or "
            f"{TOKEN_VARIABLE}",
            reason="NO_TOKEN",
        )
    return Connection(orchestrator, leaderboard, source, tls)


def _of_context(contexts: Contexts, name: str, source: TokenSource | None) -> Connection:
    from podracer_client import cluster  # late: most commands need none

    found = cluster.connect(contexts[name])
    return found if source is None else replace(found, token=source)


def token_source(token: str | None, token_file: str | Path | None) -> TokenSource | None:
    """What presents a token that is given, or a file's; None where neither is. Raises InvalidInput as FileToken."""
    if token:
        return lambda: token
    return FileToken(Path(token_file)) if token_file else None
