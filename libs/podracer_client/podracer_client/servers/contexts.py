"""Servers by name, stored by `podracer context` in ~/.config/podracer/contexts.json, without any
secret."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from podracer_client.files import write_private
from podracer_core.errors import InvalidInput


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
