"""The folder in which processes of one machine find each other's files, and its cleanup.

A file has a name only while the other side needs to find it: a segment until it is attached, a
nonce until a stream is open. Its creator holds a lock (`flock`) on it for that time. The kernel
releases the lock when the creator ends, even after a kill and across containers, where process ids
mean nothing. So a process that can lock a file knows that it is abandoned, and removes it: at every
start, and whenever it makes a file. Imports no torch."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import threading
from pathlib import Path

from podracer_core.errors import Exhausted, InvalidInput, PodracerError, PreconditionFailed

logger = logging.getLogger(__name__)

SEGMENT, NONCE = "segment", "nonce"
_NAME = re.compile(rf"podracer-({SEGMENT}|{NONCE})-[0-9a-f]{{32}}")
_DEFAULT = Path("/dev/shm")  # noqa: S108 - files there are made with O_EXCL, and only for this user
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)
_ATTEMPTS = 8


class NamedFile:
    """A file that is its creator's until `close`; the other side may have removed its name
    before."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.name, self.descriptor = path.name, descriptor
        self._path = path
        self._closing = threading.Lock()
        self._is_open = True

    def close(self) -> None:
        """Remove the name where it is still there, and let go. Closing twice is harmless, from two
        threads too."""
        with self._closing:
            was_open, self._is_open = self._is_open, False
        if was_open:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self.descriptor)


class SharedFolder:
    """Makes, finds and sweeps such files. Safe to use from several threads."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: unset for /dev/shm where there is one. Nothing is made before it is asked for."""
        self.path = path if path is not None else _DEFAULT
        self._complaints: set[str] = set()

    def create(self, kind: str, size_bytes: int) -> NamedFile:
        """A new file of zeros, SEGMENT or NONCE, for this user alone; its memory is set aside here
        and now.

        A full tmpfs is so an error now instead of a SIGBUS later. Raises Exhausted where there is
        no room and PreconditionFailed where no file can be made."""
        if not hasattr(os, "posix_fallocate"):
            raise PreconditionFailed(
                "memory cannot be set aside on this system", reason="NO_SHARED_MEMORY"
            )
        self.sweep()
        try:
            file = self._lock_new(kind)
        except OSError as error:
            raise _wrapped(f"cannot make a file in {self.path}", error) from error
        try:
            os.posix_fallocate(file.descriptor, 0, size_bytes)
        except OSError as error:
            file.close()
            raise _wrapped(f"no room for {size_bytes} bytes in {self.path}", error) from error
        return file

    def open(self, name: str) -> int:
        """A descriptor to read another process's file. Raises InvalidInput for a malformed name,
        PreconditionFailed if it cannot be opened."""
        path = self._path_of(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _wrapped(f"cannot open {path}", error) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise PreconditionFailed(f"{path} is no plain file", reason="NO_SHARED_MEMORY")
        return descriptor

    def holds(self, name: str, content: bytes) -> bool:
        """Whether there is such a file here, with exactly this content: then its writer shares this
        folder."""
        try:
            descriptor = self.open(name)
        except (PreconditionFailed, Exhausted):
            return False
        try:
            return os.read(descriptor, len(content) + 1) == content
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def unlink(self, name: str) -> None:
        """Remove a name that the other side's file need not have any longer."""
        with contextlib.suppress(OSError):
            self._path_of(name).unlink()

    def sweep(self) -> None:
        """Remove what processes that have ended left behind."""
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name):
                    _remove_if_left_behind(entry.path)

    def complain_once(self, cause: str, text: str) -> None:
        """Log a warning, unless there has been one for this cause."""
        if cause not in self._complaints:
            self._complaints.add(cause)
            logger.warning("%s", text)

    def _path_of(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name[:100]!r} is no name of a shared file", reason="BAD_CARRIER")
        own = self.path / name
        beside = self.path.parent.glob(f"*/{name}")  # a pod's containers have a folder each
        return own if own.exists() else next(beside, own)

    def _lock_new(self, kind: str) -> NamedFile:
        for _ in range(_ATTEMPTS):
            path = self.path / f"podracer-{kind}-{secrets.token_hex(16)}"
            descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            file = NamedFile(path, descriptor)
            # Between the two calls a sweep may have taken it for one that was left behind.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    return file
            file.close()
        raise OSError(errno.EAGAIN, "others sweep it away")


def _remove_if_left_behind(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # gone by now, or another user's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)  # noqa: PTH108 - while the lock is held
    except OSError:
        pass  # its creator lives, or another process removes it
    finally:
        os.close(descriptor)


def _wrapped(text: str, error: OSError) -> PodracerError:
    message = f"{text}: {error.strerror or error}"
    if error.errno in _FULL:
        return Exhausted(message, reason="SHARED_MEMORY_FULL")
    return PreconditionFailed(message, reason="NO_SHARED_MEMORY")
