"""The interface of all object stores, bytes by key, and objects as files below a folder: the store
of one machine, and of tests."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import stat
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, TypeAlias

from podracer_core.errors import (
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    Unavailable,
)

CHUNK_BYTES = 1 << 20
MAX_KEY_BYTES = 1024

_PART_OF_KEY = re.compile(r"[^\x00-\x1f\x7f/\\.][^\x00-\x1f\x7f/\\]*")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A store's data about an object, without its content; `modified` is in UTC."""

    key: str
    size_bytes: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """Keys of a session with an S3 server."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How the holder of a lease reaches objects for a time: with keys, or by the URL of one."""

    validity_s: float
    keys: StoreKeys | None = None
    url: str = field(default="", repr=False)


Ask: TypeAlias = Callable[[str, str], StoreAccess]
"""Asks for the URL of an object, by method and key, or for keys if the key is empty."""


class ObjectStore(ABC):
    """Objects under keys such as `projects/p/jobs/j/…` (see `check_key`). Safe to use from several
    threads.

    An object appears whole or not at all: readers never see a part of one. Stored objects survive a
    crash.

    Every method raises NotFound (no such object), PermissionRefused (credentials or file modes
    forbid it), Unavailable (the store does not answer; the same call may succeed later) or
    InvalidInput (a bad key)."""

    url: str

    @abstractmethod
    def put(self, key: str, data: bytes | Path) -> None:
        """Store bytes, or the content of a local file, under `key`; replaces a former object."""

    @abstractmethod
    def read_chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The object's bytes in pieces of at most `chunk_bytes`; an error comes in place of the
        piece it concerns."""

    @abstractmethod
    def stat(self, key: str) -> ObjectInfo:
        """The object's size and time."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in order of their keys' bytes. Not under a
        lease."""
        raise NotImplementedError

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens if there is none. Not under a lease."""
        raise NotImplementedError

    def session_keys(self, reads: str, writes: str, lifetime_s: float) -> StoreKeys | None:
        """Keys that can only get objects of one pattern and put those of another (`*`: any text;
        empty: none). None if the store gives no such keys."""
        return None

    def signed_url(self, method: str, key: str, lifetime_s: float) -> str:
        """A URL that can GET or PUT an object without keys; empty for a folder."""
        return ""

    def under(self, ask: Ask, own: str) -> ObjectStore:
        """This store under a lease; `own`: prefix of its job's objects. Most stores are the same
        under every lease."""
        return self

    def check(self) -> None:
        """Raise unless the store answers: one cheap request."""
        next(iter(self.list("check/")), None)

    def get(self, key: str) -> bytes:
        """The whole object."""
        # Most objects are one piece, and joining a single piece does not copy it.
        return b"".join(self.read_chunks(key, 16 * CHUNK_BYTES))

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        try:
            self.stat(key)
        except NotFound:
            return False
        return True

    def delete_prefix(self, prefix: str) -> int:
        """Remove every object below a prefix that ends with `/`; returns how many there were."""
        if not prefix.endswith("/"):
            raise InvalidInput(
                f"prefix {prefix!r} must end with /, or it would match more than one folder"
            )
        keys = [info.key for info in self.list(prefix)]
        for key in keys:
            self.delete(key)
        return len(keys)

    def settle(self, timeout_s: float = 0.0) -> bool:
        """Whether all put objects are durable, after waiting at most `timeout_s`: True at once,
        except in a `Spool`."""
        return True

    def close(self) -> None:  # noqa: B027 - a folder has nothing to give back
        """Close connections; closing twice is harmless."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def check_key(key: str) -> str:
    """`key` itself. Raises InvalidInput unless it is valid in every store.

    Parts between `/` are not empty, do not start with a dot (which excludes `..` and a folder
    store's drafts), and have neither backslashes nor control characters. At most 1,024 bytes of
    UTF-8."""
    problem = ""
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        problem = "is not valid Unicode"
    else:
        if not key:
            problem = "is empty"
        elif size_bytes > MAX_KEY_BYTES:
            problem = f"has {size_bytes} bytes; at most {MAX_KEY_BYTES} are allowed"
        elif key.startswith("/"):
            problem = "is absolute; keys are relative to the store"
        elif not all(_PART_OF_KEY.fullmatch(part) for part in key.split("/")):
            problem = (
                "has an empty part, one that starts with a dot, a backslash or a control character"
            )
    if problem:
        raise InvalidInput(
            f"object key {key[:200]!r} {problem}", reason="INVALID_KEY", key=key[:200]
        )
    return key


def check_prefix(prefix: str) -> str:
    """`prefix` itself if keys can start with it: empty, or a key that may be cut anywhere; else
    InvalidInput."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def open_source(data: bytes | Path) -> BinaryIO:
    """The argument of `put` as a stream. Raises InvalidInput if the local file cannot be read."""
    if not isinstance(data, Path):
        return io.BytesIO(data)
    try:
        return data.open("rb")
    except OSError as error:
        raise InvalidInput(f"cannot read {data}: {error.strerror}", path=data) from error


# Drafts lie in one place on the same file system; keys cannot start with a dot, so none can name
# it.
DRAFTS = ".drafts"
_DRAFT_LIFETIME_S = 24 * 3600.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FolderStore(ObjectStore):
    """Objects as files: a key is a path below `root`. Writes go to a draft, are flushed, and moved
    into place."""

    def __init__(self, root: Path, *, create: bool = True) -> None:
        """`create`: make the folder, which must be writable; otherwise it must exist and be
        readable."""
        self._root = root
        self._drafts = root / DRAFTS
        self.url = root.absolute().as_uri()
        with _mapped_errors(f"object store {self.url}"):
            if create:
                _make_folders(self._drafts)
                draft = self._new_draft()
                draft.touch()
                draft.unlink()
                self._remove_old_drafts()
            else:
                os.scandir(root).close()

    def put(self, key: str, data: bytes | Path) -> None:
        target = self._root / check_key(key)
        draft = self._new_draft()
        with open_source(data) as source, _mapped_errors(f"{self.url}: cannot store {key!r}"):
            _make_folders(self._drafts)
            try:
                with draft.open("xb") as file:
                    if isinstance(data, Path):
                        shutil.copyfileobj(source, file, CHUNK_BYTES)
                    else:
                        file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                _move_into_place(draft, target)
            finally:
                draft.unlink(missing_ok=True)

    def read_chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        path = self._root / check_key(key)
        with self._mapped_read_errors(key), path.open("rb", buffering=0) as file:
            # One read of the right size, then one that finds the end: the usual object is not
            # copied again.
            while chunk := file.read(
                min(chunk_bytes, os.fstat(file.fileno()).st_size - file.tell() + 1)
            ):
                yield chunk

    def stat(self, key: str) -> ObjectInfo:
        path = self._root / check_key(key)
        with self._mapped_read_errors(key):
            if path.is_dir():
                raise IsADirectoryError
            return _info(key, path.stat())

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        # Only the deepest folder named by the prefix can hold matching keys.
        folder, _, _ = check_prefix(prefix).rpartition("/")
        with _mapped_errors(f"{self.url}: cannot list {prefix!r}"):
            keys = [key for key in self._walk(folder) if key.startswith(prefix)]
            for key in sorted(keys, key=str.encode):
                with contextlib.suppress(FileNotFoundError):  # deleted since
                    yield _info(key, (self._root / key).stat())

    def delete(self, key: str) -> None:
        path = self._root / check_key(key)
        with _mapped_errors(f"{self.url}: cannot delete {key!r}"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                path.unlink()
            # not empty, or a put has just made it again: then it stays
            with contextlib.suppress(OSError):
                for folder in path.parents:
                    if folder == self._root:
                        break
                    folder.rmdir()

    def check(self) -> None:
        with _mapped_errors(f"object store {self.url}"):
            os.scandir(self._root).close()

    def _walk(self, folder: str) -> Iterator[str]:
        for place, folders, files in os.walk(self._root / folder):
            below = Path(place).relative_to(self._root)
            if below == Path():
                folders[:] = [name for name in folders if name != DRAFTS]
            for name in files:
                yield (below / name).as_posix()

    @contextlib.contextmanager
    def _mapped_read_errors(self, key: str) -> Iterator[None]:
        try:
            with _mapped_errors(f"{self.url}: cannot read {key!r}"):
                yield
        except (NotFound, InvalidInput) as error:
            # a folder is no object, nor is anything below a file
            raise NotFound(f"{self.url}: no object {key!r}", key=key) from error

    def _new_draft(self) -> Path:
        return self._drafts / uuid.uuid4().hex

    def _remove_old_drafts(self) -> None:
        """Drafts outlive only a killed writer; those older than a day have no writer any more."""
        for draft in self._drafts.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > _DRAFT_LIFETIME_S:
                    draft.unlink()


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _move_into_place(draft: Path, target: Path) -> None:
    """Rename, once the folders exist. A concurrent delete may remove an empty one: then try once
    more."""
    while True:
        try:
            _make_folders(target.parent)
            draft.replace(target)
        except FileNotFoundError:
            if not draft.exists():
                raise
        else:
            break
    # the object has been deleted already, and its folder with it
    with contextlib.suppress(FileNotFoundError):
        _sync_folder(target.parent)


def _make_folders(folder: Path) -> None:
    """Like mkdir -p, but the new folders survive a power cut."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError as error:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise NotADirectoryError(
                errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)
            ) from error
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _mapped_errors(what: str) -> Iterator[None]:
    """OSError -> PodracerError, whose message starts with `what`."""
    try:
        yield
    except OSError as error:
        message = f"{what}: {error.strerror}" + (f" ({error.filename})" if error.filename else "")
        kind: type[PodracerError] = Unavailable
        if isinstance(error, FileNotFoundError):
            kind = NotFound
        elif isinstance(error, PermissionError) or error.errno == errno.EROFS:
            kind = PermissionRefused
        elif (
            isinstance(error, NotADirectoryError | IsADirectoryError)
            or error.errno == errno.ENAMETOOLONG
        ):
            kind = InvalidInput
        elif error.errno in _FULL:
            message += "; free some space, then it goes on"
        raise kind(message) from error
