"""Servers by name: what `podracer context` keeps in ~/.config/podracer/contexts.json, without any secret."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from podracer_client.role_folders import write_secret
from podracer_core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """Where Podracer runs: a namespace, and a context of kubectl (empty: kubectl's current one)."""

    namespace: str
    kube_context: str = ""


@dataclass(frozen=True, slots=True)
class Contexts:
    """The known ones by name, and the name of the one that is used where none is given; empty: none."""

    known: Mapping[str, ClusterPlace] = field(default_factory=dict)
    current: str = ""

    @classmethod
    def read(cls) -> Contexts:
        """Empty where there is no file. Raises InvalidInput for one that cannot be read or is not ours."""
        path = _path()
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            known = {name: ClusterPlace(**place) for name, place in values["contexts"].items()}
            return cls(known, str(values["current"]))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{path} is not a file of `podracer context`: {error}", path=path) from error

    def write(self) -> Path:
        values = {"current": self.current, "contexts": {name: asdict(place) for name, place in self.known.items()}}
        try:
            write_secret(_path(), f"{json.dumps(values, indent=2)}\n".encode())
        except OSError as error:
            raise InvalidInput(f"cannot write {_path()}: {error.strerror}", path=_path()) from error
        return _path()

    def get(self, name: str) -> ClusterPlace:
        """Raises InvalidInput for an unknown name."""
        if name not in self.known:
            known = f"known are {', '.join(sorted(self.known))}" if self.known else "`podracer context add` makes one"
            raise InvalidInput(f"there is no context {name}; {known}", reason="NO_CONTEXT")
        return self.known[name]

    def with_context(self, name: str, place: ClusterPlace) -> Contexts:
        """With one more, which is the current one."""
        return Contexts({**self.known, name: place}, name)

    def using(self, name: str) -> Contexts:
        """Raises InvalidInput for an unknown name."""
        self.get(name)
        return replace(self, current=name)

    def without(self, name: str) -> Contexts:
        """Raises InvalidInput for an unknown name."""
        self.get(name)
        known = {other: place for other, place in self.known.items() if other != name}
        return Contexts(known, "" if self.current == name else self.current)


def _path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path("~/.config").expanduser()) / "podracer" / "contexts.json"
