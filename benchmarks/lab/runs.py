"""Ended runs in files of JSON lines, so that an interrupted benchmark continues where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar


class Keyed(Protocol):
    """A dataclass with a key that no other run has."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def key(self) -> Hashable: ...


Run = TypeVar("Run", bound=Keyed)


class Runs(Generic[Run]):
    """Those of several files, of which `results` grows. Of equal keys the last one counts."""

    def __init__(self, kind: type[Run], results: Path, *records: Path) -> None:
        self._results = results
        self._runs: dict[Hashable, Run] = {}
        for fields in read_lines(*records, results):
            self.keep(kind(**fields))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._runs

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def get(self, key: Hashable) -> Run | None:
        return self._runs.get(key)

    def keep(self, run: Run) -> None:
        self._runs[run.key] = run

    def add(self, runs: Iterable[Run]) -> None:
        """A line more for each."""
        for run in runs:
            append_lines(self._results, [asdict(run)])
            self.keep(run)

    def copy(self, record: Path) -> None:
        """All of them, for the repository."""
        lines = sorted(json.dumps(asdict(run)) for run in self)
        record.write_text("".join(f"{line}\n" for line in lines))


def read_lines(*files: Path) -> Iterator[dict[str, Any]]:
    """The objects in those files that there are, one a line; a line that was not written to its end
    is none."""
    for line in (line for file in files if file.exists() for line in file.read_text().splitlines()):
        with suppress(ValueError):
            yield json.loads(line)


def append_lines(file: Path, objects: Iterable[Mapping[str, Any]]) -> None:
    """Add a line for each, also behind one that was not written to its end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    is_torn = file.exists() and not file.read_text().endswith("\n")
    lines = [json.dumps(each) + "\n" for each in objects]
    with file.open("a") as opened:
        opened.write("\n" * (is_torn and file.stat().st_size > 0) + "".join(lines))


def digest(settings: Mapping[str, object]) -> str:
    """Eight characters that are others for other settings."""
    text = json.dumps(settings, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
