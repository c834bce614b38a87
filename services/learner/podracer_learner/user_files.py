"""The files of a job's environment: out of the object store into this learner's cache, and from there to its peers.

Workers and evaluators hold no keys of the store. They are asked to begin, say that files are missing, and get them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from podracer_core.attachments.cache import FileCache
from podracer_core.attachments.placement import FILES_MISSING, PlacedEnvironment, place_environment
from podracer_core.attachments.transfer import put_file
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.environments.spec import StoredFile
from podracer_core.errors import PodracerError, PreconditionFailed
from podracer_core.storage.object_store import ObjectStore

__all__ = ["Delivery", "FetchedFiles", "UserFiles", "wants_files"]

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class UserFiles:
    """Where a lease's files come from and where they are kept. `check` is called meanwhile; raises to give up."""

    store: ObjectStore
    cache: FileCache
    check: Callable[[], None]

    def fetch(self, spec: EnvironmentSpec) -> FetchedFiles:
        """Have the files of an environment here.

        Raises NotFound or DataCorrupted where the store does not have what the job names, and the cache's errors.
        """
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
    """The files of one environment, here until `close`; closing twice is harmless."""

    def __init__(
        self, spec: EnvironmentSpec, paths: dict[StoredFile, Path], cache: FileCache, holds: ExitStack
    ) -> None:
        self._spec, self._paths, self._cache, self._holds = spec, paths, cache, holds

    def place(self) -> PlacedEnvironment:
        """The environment as it can be started in a child of this process. Errors as of `place_environment`."""
        return place_environment(self._spec, self._cache)

    def add(self, data: bytes) -> str:
        """Have these bytes go along with them, as a file that is known by its hash: that is returned."""
        sha256 = hashlib.sha256(data).hexdigest()
        file = StoredFile(sha256, sha256, len(data))
        held = self._cache.hold(file) or self._cache.add(file, [data])
        self._paths[file] = self._holds.enter_context(held).path
        return sha256

    def deliver(self, put: Callable[..., Any], request: Callable[..., Any]) -> Delivery:
        """Begin to send all of them; `put` is a stub's PutFile, `request` makes its messages."""
        return Delivery(self._paths, put, request)

    def close(self) -> None:
        """Let them go."""
        self._holds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Delivery:
    """Files on their way to a peer, in a thread of their own: large ones take their time, and training may go on."""

    def __init__(self, paths: dict[StoredFile, Path], put: Callable[..., Any], request: Callable[..., Any]) -> None:
        self._paths, self._put, self._request = paths, put, request
        self._outcome: Future[None] = Future()
        threading.Thread(target=self._run, name="file-delivery", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._outcome.done()

    def wait(self, timeout_s: float) -> None:
        """Return when it is over, at the latest after `timeout_s`."""
        try:
            self._outcome.exception(timeout_s)
        except FutureTimeoutError:
            return

    def result(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until all files are there, calling `check`. Raises what the peer said."""
        while not self.done:
            check()
            self.wait(_POLL_S)
        self._outcome.result()

    def _run(self) -> None:
        try:
            for file, path in self._paths.items():
                put_file(self._put, self._request, file, path)
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)


def wants_files(error: PodracerError) -> bool:
    """Whether a peer cannot begin because it lacks files."""
    return isinstance(error, PreconditionFailed) and error.reason == FILES_MISSING
