"""The files of a job's environment: out of the object store into this learner's cache, and from
there to its peers.

Workers and evaluators hold no keys of the store. Asked to begin, they answer that files are
missing, and get them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from podracer_core.catalogue import EnvironmentSpec, StoredFile
from podracer_core.errors import PodracerError, PreconditionFailed
from podracer_core.storage import ObjectStore
from podracer_learner.background import BackgroundTask
from podracer_platform.attachments import (
    FILES_MISSING,
    FileCache,
    PlacedEnvironment,
    place_environment,
    put_file,
)


@dataclass(frozen=True, slots=True)
class UserFiles:
    """Fetches a lease's files into the cache. `check` is called meanwhile and raises to cancel."""

    store: ObjectStore
    cache: FileCache
    check: Callable[[], None]

    def fetch(self, spec: EnvironmentSpec) -> FetchedFiles:
        """Fetch the files of an environment.

        Raises NotFound or DataCorrupted if the store does not have the job's files, and the cache's
        errors."""
        with ExitStack() as holds:
            paths = {}
            for file in spec.stored_files:
                held = self.cache.hold(file) or self.cache.add(file, self._chunks(file.key))
                paths[file] = holds.enter_context(held).path
            return FetchedFiles(spec, paths, self.cache, holds.pop_all())

    def _chunks(self, key: str) -> Iterator[bytes]:
        for chunk in self.store.read_chunks(key):
            self.check()
            yield chunk


class FetchedFiles:
    """The files of one environment, here until `close`; closing twice is harmless. `spec`: the
    environment."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        paths: dict[StoredFile, Path],
        cache: FileCache,
        holds: ExitStack,
    ) -> None:
        self.spec, self._paths, self._cache, self._holds = spec, paths, cache, holds

    def place(self) -> PlacedEnvironment:
        """The environment, ready to start in a child of this process. Raises as
        `place_environment`."""
        return place_environment(self.spec, self._cache)

    def add(self, data: bytes) -> str:
        """Add these bytes as a file that is known by its hash; returns the hash."""
        sha256 = hashlib.sha256(data).hexdigest()
        file = StoredFile(sha256, sha256, len(data))
        held = self._cache.hold(file) or self._cache.add(file, [data])
        self._paths[file] = self._holds.enter_context(held).path
        return sha256

    def deliver(self, put: Callable[..., Any], request: Callable[..., Any]) -> BackgroundTask[None]:
        """Start sending all files, which may take long; `put` is a stub's PutFile, `request` makes
        its messages."""

        def send() -> None:
            for file, path in self._paths.items():
                put_file(put, request, file, path)

        return BackgroundTask(send, "file-delivery")

    def close(self) -> None:
        """Release the files."""
        self._holds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def wants_files(error: PodracerError) -> bool:
    """Whether a peer cannot begin because files are missing."""
    return isinstance(error, PreconditionFailed) and error.reason == FILES_MISSING
