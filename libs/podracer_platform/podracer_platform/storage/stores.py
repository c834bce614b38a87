"""The object store at a URL, and a spool before it: `put` waits for the local disk only; a thread
uploads the objects."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from podracer_core.errors import (
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    NotFound,
    PodracerError,
    Unavailable,
)
from podracer_core.storage import (
    CHUNK_BYTES,
    FolderStore,
    ObjectInfo,
    ObjectStore,
    check_key,
    open_source,
)
from podracer_platform.rpc import Backoff
from podracer_platform.telemetry import SPOOL

if TYPE_CHECKING:
    from podracer_platform.storage.s3 import S3Settings


def open_store(
    url: str, s3: S3Settings | None = None, *, create: bool = True, leased: bool = False
) -> ObjectStore:
    """The store at `file:///absolute/path` or `s3://bucket/prefix`, checked to be usable.

    A missing folder or bucket is made, unless `create` is false (then NotFound). `leased`: a bucket
    without keys in the settings is reached under leases only (`ObjectStore.under`). `s3`: address
    and keys of the S3 server; by default from the environment (PODRACER_S3_ENDPOINT, …). An
    unreachable server is no error: `check` raises then, and the store works once the server is
    back. Raises InvalidInput, NotFound, PermissionRefused or PreconditionFailed, each naming the
    url."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return FolderStore(Path(unquote(parts.path)), create=create)
    if parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc:
        from podracer_platform.storage.s3 import LeasedStore, S3Settings, S3Store  # late: minio

        settings = s3 or S3Settings.from_environment()
        if leased and settings.access_key is None:
            return LeasedStore(parts.netloc, parts.path.strip("/"), settings)
        return S3Store(parts.netloc, parts.path.strip("/"), settings, create=create)
    shown = "s3://…@…" if "@" in parts.netloc else url
    raise InvalidInput(
        f"object store {shown!r}: expected file:///absolute/path or s3://bucket/prefix",
        reason="INVALID_STORE_URL",
    )


logger = logging.getLogger(__name__)

_LOCK = ".lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_RETRY_S = (0.2, 5.0)
_THREADS = 8
_END_S = 2.0


class SpoolFolder:
    """This process's own folder below one that several may share, within a limit of bytes.

    The process locks it for life. A process that can lock another folder knows that its owner is
    dead, and removes it. No object is lost with it: an object counts once it is in the store."""

    def __init__(self, parent: Path, limit_bytes: int, *, only_ours: bool = False) -> None:
        """`only_ours`: `parent` must belong to this user alone. Raises InvalidInput if it does not,
        or if no folder can be made there."""
        self.limit_bytes, self._numbers = limit_bytes, itertools.count(1)
        try:
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if only_ours:
                _require_own(parent)
            making = _locked(parent, wait=True)  # a new folder has no lock for a moment
            try:
                _sweep(parent)
                self.path = Path(tempfile.mkdtemp(dir=parent))
                self._lock: int | None = _locked(self.path)
            finally:
                os.close(making)
        except OSError as error:
            raise InvalidInput(
                f"no spool in {parent}: {error.strerror}", reason="FOLDER_UNWRITABLE"
            ) from error

    def new_file(self) -> Path:
        """A new, unused path."""
        return self.path / str(next(self._numbers))

    def close(self) -> None:
        """Remove it; closing twice is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@dataclass(eq=False, slots=True)
class _Waiting:
    key: str
    path: Path
    size_bytes: int
    under_way: bool = False


class Spool(ObjectStore):
    """A store that objects reach through a folder. Safe to use from several threads.

    An object arrives after all objects that were put before it into or below its folder, so the
    files of a manifest arrive before it. Objects wait while the store is unavailable. Reads return
    objects that still wait."""

    def __init__(self, store: ObjectStore, folder: SpoolFolder) -> None:
        self._store, self._folder, self.url = store, folder, store.url
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._failure: PodracerError | None = None
        self._closed = False
        self._being_written = 0  # bytes
        self._threads: list[threading.Thread] = []

    def put(self, key: str, data: bytes | Path) -> None:
        """Raises Exhausted (SPOOL_FULL) if there is no room, and the permanent error of an earlier
        object."""
        check_key(key)
        size_bytes = len(data) if isinstance(data, bytes) else data.stat().st_size
        with self._changed:
            self._check()
            held = self._being_written + sum(one.size_bytes for one in self._waiting)
            if held and held + size_bytes > self._folder.limit_bytes:
                raise Exhausted(
                    f"no room for {key!r}: {held} bytes already wait for {self.url}",
                    reason="SPOOL_FULL",
                )
            self._being_written += size_bytes
        path = self._folder.new_file()
        try:
            self._write(key, data, path)
        finally:
            with self._changed:
                self._being_written -= size_bytes
        with self._changed:
            self._waiting.append(_Waiting(key, path, size_bytes))
            SPOOL.set(held + size_bytes)
            if len(self._threads) < min(_THREADS, len(self._waiting)):
                self._threads.append(
                    threading.Thread(target=self._upload, name="upload", daemon=True)
                )
                self._threads[-1].start()
            self._changed.notify_all()

    def settle(self, timeout_s: float = 0.0) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (
                self._waiting
                and self._failure is None
                and (left_s := deadline - time.monotonic()) > 0
            ):
                self._changed.wait(left_s)
            self._check()
            return not self._waiting

    def read_chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        waiting = self._find(key)
        if waiting is not None:
            # it has arrived meanwhile
            with contextlib.suppress(FileNotFoundError), waiting.path.open("rb") as file:
                while chunk := file.read(chunk_bytes):
                    yield chunk
                return
        yield from self._store.read_chunks(key, chunk_bytes)

    def stat(self, key: str) -> ObjectInfo:
        waiting = self._find(key)
        if waiting is None:
            return self._store.stat(key)
        return ObjectInfo(waiting.key, waiting.size_bytes, datetime.now(UTC))

    def close(self) -> None:
        """Drop objects that have not arrived. The store stays open."""
        with self._changed:
            self._closed = True
            self._drop()
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _write(self, key: str, data: bytes | Path, path: Path) -> None:
        try:
            if isinstance(data, bytes):
                path.write_bytes(data)
            else:
                with open_source(data) as source, path.open("xb") as file:
                    shutil.copyfileobj(source, file, CHUNK_BYTES)
        except OSError as error:
            path.unlink(missing_ok=True)
            message = f"{self.url}: cannot spool {key!r}: {error.strerror} ({path.parent})"
            raise (
                Exhausted(message, reason="SPOOL_FULL")
                if error.errno in _FULL
                else Unavailable(message)
            ) from error

    def _upload(self) -> None:
        """The upload thread: one object after the other, until the spool is closed."""
        waits = Backoff(*_RETRY_S)
        while (next_one := self._take()) is not None:
            try:
                self._bring(next_one)
            except (Unavailable, DeadlineExpired) as error:
                logger.info("waiting to store an object: %s", error.message)
                with self._changed:
                    next_one.under_way = False
                    self._changed.wait_for(lambda: self._closed, next(waits))
            except Exception as error:
                if not isinstance(error, PodracerError):
                    logger.exception("cannot store an object in %s", self.url)
                    error = PodracerError(f"{self.url}: cannot store {next_one.key!r}: {error!r}")
                with self._changed:
                    self._failure = self._failure or error
                    self._drop()
            else:
                waits.reset()
                next_one.path.unlink(missing_ok=True)
                with self._changed:
                    with contextlib.suppress(ValueError):  # given up meanwhile
                        self._waiting.remove(next_one)
                    SPOOL.set(sum(one.size_bytes for one in self._waiting))
                    self._changed.notify_all()

    def _bring(self, one: _Waiting) -> None:
        """Upload an object. Raises Unavailable if the store does not have it afterwards: servers
        that write in place may remove it when they abandon an earlier attempt late."""
        self._store.put(one.key, one.path)
        try:
            found_bytes = self._store.stat(one.key).size_bytes
        except NotFound:
            found_bytes = -1
        if found_bytes != one.size_bytes:
            raise Unavailable(
                f"{self.url}: {one.key!r} was accepted, but is missing", reason="NOT_KEPT"
            )

    def _take(self) -> _Waiting | None:
        """The next object to upload; None if the thread has to end."""
        with self._changed:
            while not self._closed:
                for index, one in enumerate(self._waiting):
                    folder = one.key[: one.key.rfind("/") + 1]
                    if not one.under_way and not any(
                        own.key.startswith(folder) for own in self._waiting[:index]
                    ):
                        one.under_way = True
                        return one
                self._changed.wait()
        return None

    def _drop(self) -> None:
        for one in self._waiting:
            one.path.unlink(missing_ok=True)
        self._waiting.clear()
        self._changed.notify_all()

    def _find(self, key: str) -> _Waiting | None:
        """The newest of this key that has not arrived."""
        with self._changed:
            return next((one for one in reversed(self._waiting) if one.key == key), None)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise Unavailable(f"{self.url}: the spool is closed", reason="CLOSED")


def _require_own(folder: Path) -> None:
    """Raises InvalidInput for a folder that others may change: they would read, or exchange, what
    is in it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        message = (
            f"cannot spool in {folder}: it must belong to this user, with no write "
            "permission for others (chmod 700)"
        )
        raise InvalidInput(message, reason="FOLDER_UNWRITABLE")


def _locked(folder: Path, *, wait: bool = False) -> int:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _sweep(parent: Path) -> None:
    """Remove folders whose process has ended."""
    for folder in parent.iterdir():
        with contextlib.suppress(OSError):
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
