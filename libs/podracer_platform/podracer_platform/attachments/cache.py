"""Files by hash in a bounded folder of this machine, which several processes use at the same time.

    <root>                  `podracer-<user id>` in the given folder, owned by this user: a
                            cluster's volume is root's, and open to a group
    <root>/<sha256>.csv     a data set, <sha256>.zip a code archive: verified on arrival and
                            whenever it is handed out
    <root>/<sha256>-code/   an archive's files, compared with the archive whenever they are handed
                            out: on a machine without a whole box, code of an earlier session may
                            have changed them
    <root>/<hash>-market/   what an environment has made of a data set, for the processes that share
                            the cache
    <root>/.drafts/         entries that are being written or removed
    <root>/.lock            held while entries are added or removed, .making while one is made of
                            others

A user of an entry holds a shared lock on it. The kernel releases the lock when the process ends,
even after a kill. When room is needed, unlocked entries are removed, least recently used first. An
entry appears whole or not at all. A draft is locked by its writer; an unlocked draft belongs to a
dead process and is removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from podracer_core.catalogue import EnvironmentSpec, StoredFile
from podracer_core.errors import (
    DataCorrupted,
    Exhausted,
    PermissionRefused,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_platform.attachments.code_archive import (
    announced_bytes,
    is_unpacked,
    mebibytes,
    unpack_code,
)

logger = logging.getLogger(__name__)

_DRAFTS, _LOCK, _MAKING = ".drafts", ".lock", ".making"
_OPENING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class Held:
    """An entry that is kept until `close`; closing twice is harmless. `path` is its file or
    folder."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor  # on which the lock is

    def close(self) -> None:
        """Release the entry."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class FileCache:
    """See the module. Every method raises Exhausted without room, Unavailable if the disk fails,
    and PermissionRefused if other users can write the folder. Safe in any thread."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """The cache is a folder in `folder`, created at first use; it holds at most
        `limit_bytes`."""
        self._folder, self._limit_bytes = folder, limit_bytes
        self._root = folder / f"podracer-{os.geteuid()}"
        self._drafts = self._root / _DRAFTS

    def hold(self, file: StoredFile) -> Held | None:
        """The file, or None if it is not in the cache."""
        with self._mapped_errors():
            self._open_root()
            return self._hold(
                self._root / file.local_name, lambda held: _has_hash(held, file.sha256)
            )

    def add(self, file: StoredFile, chunks: Iterable[bytes]) -> Held:
        """Add the file's bytes. Raises DataCorrupted if they do not match its hash and size."""
        with self._mapped_errors(), self._draft(file.size_bytes) as draft:
            digest, received = hashlib.sha256(), 0
            with draft.path.open("r+b") as target:
                for chunk in chunks:
                    received += len(chunk)
                    if received > file.size_bytes:
                        break
                    digest.update(chunk)
                    target.write(chunk)
            if (received, digest.hexdigest()) != (file.size_bytes, file.sha256):
                raise DataCorrupted(
                    f"{file.key} has {received} bytes with SHA-256 {digest.hexdigest()}, expected "
                    f"{file.size_bytes} with {file.sha256}",
                    key=file.key,
                )
            return self._publish(draft, file.local_name)

    def hold_unpacked(self, file: StoredFile) -> Held | None:
        """The folder with the files of a code archive, or None if the archive is not in the cache.

        Raises InvalidInput (INVALID_CODE_ARCHIVE) as `unpack_code` does.
        """
        name = f"{file.sha256}-code"
        with self._mapped_errors():
            if (archive := self.hold(file)) is None:
                return None
            with archive:
                folder = self._hold(
                    self._root / name, lambda held: is_unpacked(archive.path, held.path)
                )
                if folder is not None:
                    return folder
                with self._draft(announced_bytes(archive.path), is_folder=True) as draft:
                    unpack_code(archive.path, draft.path)
                    return self._publish(draft, name)

    @classmethod
    def holding(cls, path: Path, limit_bytes: int) -> FileCache | None:
        """The cache that has this entry; None if the path is no entry of this user's cache."""
        root = path.parent
        is_root = root.name == f"podracer-{os.geteuid()}" and (root / _DRAFTS).is_dir()
        return cls(root.parent, limit_bytes) if is_root else None

    def hold_made(self, name: str, make: Callable[[Callable[[int], Path]], None]) -> Held:
        """The folder `name`. If it is missing, `make` fills it, in one process at a time.

        `make` gets a function that returns the new folder, with room for so many bytes, and calls
        it once. What it makes from entries is not verified when it is held again."""
        with self._mapped_errors(), ExitStack() as stack:
            self._open_root()
            making = os.open(self._root / _MAKING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, making)
            fcntl.flock(making, fcntl.LOCK_EX)
            if (present := self._hold(self._root / name)) is not None:
                return present
            drafts: list[Held] = []

            def folder(size_bytes: int) -> Path:
                drafts.append(stack.enter_context(self._draft(size_bytes, is_folder=True)))
                return drafts[0].path

            make(folder)
            return self._publish(drafts[0], name)

    def _hold(self, path: Path, is_whole: Callable[[Held], bool] = lambda _: True) -> Held | None:
        """The entry; one that is not whole any more is removed."""
        while True:
            try:
                descriptor = _open(path)
            except FileNotFoundError:
                return None
            held = Held(path, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits no longer than a removal takes
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(descriptor)):
                    os.utime(descriptor)  # it has been used now
                    if is_whole(held):
                        return held
                    logger.warning(
                        "%s was changed after it had been brought here; it is made again", path
                    )
                    with self._alone():
                        if os.path.samestat(path.stat(), os.fstat(descriptor)):
                            self._bury(path)
            held.close()  # it was removed while we opened it

    @contextlib.contextmanager
    def _draft(self, size_bytes: int, *, is_folder: bool = False) -> Iterator[Held]:
        """A file or folder to write, with room for `size_bytes`; removed at the end unless it was
        published."""
        self._open_root()
        path = self._drafts / uuid.uuid4().hex
        with self._alone():
            self._remove_dead_drafts()
            self._make_room(size_bytes)
            if is_folder:
                path.mkdir(0o700)
            else:
                path.touch(0o600)
                os.truncate(path, size_bytes)  # from now on others count it
            draft = Held(path, os.open(path, _OPENING))
            fcntl.flock(draft.descriptor, fcntl.LOCK_SH)
        try:
            yield draft
        finally:
            _remove(path)
            draft.close()

    def _publish(self, draft: Held, name: str) -> Held:
        """Turn a draft into an entry; its lock remains."""
        path = self._root / name
        with self._alone():
            if (present := self._hold(path)) is not None:
                return present  # another process was first
            draft.path.rename(path)
            if not path.is_dir():
                path.chmod(0o444)
            return Held(path, os.dup(draft.descriptor))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a lock under which no other process adds or removes entries."""
        descriptor = os.open(
            self._root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _open_root(self) -> None:
        """Open the root and check its permissions: code runs from here, so no other user may be
        able to write it."""
        self._folder.mkdir(0o700, parents=True, exist_ok=True)
        self._require(self._folder, {0, os.geteuid()}, 0)
        self._root.mkdir(0o700, exist_ok=True)
        self._require(self._root, {os.geteuid()}, 0o022)
        self._drafts.mkdir(0o700, exist_ok=True)

    def _require(self, folder: Path, owners: Collection[int], closed: int) -> None:
        status = folder.lstat()
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid not in owners
            or status.st_mode & closed
        ):
            raise PermissionRefused(
                f"the cache {folder} must belong to this user, with no write permission for "
                "others, or be a volume of root's that holds such a folder; choose another "
                "(PODRACER_CACHE_DIR)",
                folder=folder,
            )

    def _make_room(self, needed_bytes: int) -> None:
        entries = [path for path in self._root.iterdir() if not path.name.startswith(".")]
        sizes = {path: _size_bytes(path) for path in entries}
        total = sum(sizes.values()) + sum(_size_bytes(path) for path in self._drafts.iterdir())
        for path in sorted(entries, key=lambda path: path.stat().st_mtime_ns):
            if total + needed_bytes <= self._limit_bytes:
                return
            if self._evict(path):
                total -= sizes[path]
        if total + needed_bytes > self._limit_bytes:
            raise Exhausted(
                f"the cache {self._root} has no room for {mebibytes(needed_bytes)}: "
                f"{mebibytes(total)} of {mebibytes(self._limit_bytes)} are in use "
                "(PODRACER_CACHE_SIZE)",
                reason="CACHE_FULL",
                retry_after_s=1,
            )

    def _evict(self, path: Path) -> bool:
        """Remove an entry unless it is in use."""
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            self._bury(path)
            return True
        finally:
            os.close(descriptor)

    def _bury(self, path: Path) -> None:
        grave = self._drafts / uuid.uuid4().hex
        path.rename(grave)
        _remove(grave)

    def _remove_dead_drafts(self) -> None:
        for draft in self._drafts.iterdir():
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                descriptor = _open(draft)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(draft)
                finally:
                    os.close(descriptor)

    @contextlib.contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = (
                "; free some space, or choose another folder (PODRACER_CACHE_DIR)" if full else ""
            )
            place = f" ({error.filename})" if error.filename else ""
            kind: type[PodracerError] = (
                PermissionRefused if isinstance(error, PermissionError) else Unavailable
            )
            raise kind(f"the cache {self._root}: {error.strerror}{place}{hint}") from error


def _open(path: Path) -> int:
    """Open an entry in order to lock it. User code runs as the same user: if it has removed an
    entry's permissions, they are restored."""
    try:
        return os.open(path, _OPENING)
    except PermissionError:
        path.chmod(0o500)
        return os.open(path, _OPENING)


def _has_hash(held: Held, sha256: str) -> bool:
    with os.fdopen(held.descriptor, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _size_bytes(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    with contextlib.suppress(FileNotFoundError):  # a draft that has just ended
        if not path.is_dir():
            return path.stat().st_size
        return sum(
            Path(place, name).stat().st_size for place, _, names in os.walk(path) for name in names
        )
    return 0


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir():
        path.chmod(0o700)
        for place, folders, _ in os.walk(path):  # user code may have shut them
            for folder in (Path(place, name) for name in folders):
                if not folder.is_symlink():
                    folder.chmod(0o700)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


FILES_MISSING = "FILES_MISSING"
"""Reason of the error that asks the caller to send the environment's files (PutFile) and to repeat
the call."""


class PlacedEnvironment:
    """An environment with local paths only. The files are kept until `close`; closing twice is
    harmless."""

    def __init__(self, spec: EnvironmentSpec, holds: ExitStack) -> None:
        self.spec = spec
        self._holds = holds

    def close(self) -> None:
        """Release its files: every process that was started from them must have ended."""
        self._holds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def place_environment(spec: EnvironmentSpec, cache: FileCache) -> PlacedEnvironment:
    """`spec` with the folder of its code and the paths of its data sets.

    Raises PreconditionFailed (FILES_MISSING) if one is not in the cache, InvalidInput
    (INVALID_CODE_ARCHIVE) for an invalid code archive, and the cache's errors."""
    with ExitStack() as holds:
        code_path = spec.code_path
        if spec.code is not None:
            code_path = _path_of(cache.hold_unpacked(spec.code), spec.code, holds)
        data = {
            name: _path_of(cache.hold(file), file, holds) if isinstance(file, StoredFile) else file
            for name, file in spec.data.items()
        }
        placed = replace(spec, code=None, code_path=code_path, data=data)
        return PlacedEnvironment(placed, holds.pop_all())


def _path_of(held: Held | None, file: StoredFile, holds: ExitStack) -> str:
    if held is None:
        raise PreconditionFailed(
            f"the file {file.sha256} has not been brought here", reason=FILES_MISSING
        )
    return str(holds.enter_context(held).path)
