"""Objects as files below a folder: the store of one machine, and of tests."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from podracer_core.errors import (
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    Unavailable,
)
from podracer_core.storage.object_store import (
    CHUNK_BYTES,
    ObjectInfo,
    ObjectStore,
    check_key,
    check_prefix,
    open_source,
)

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
