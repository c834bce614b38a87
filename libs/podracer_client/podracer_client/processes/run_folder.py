"""A private folder with a short path for the unix sockets of one run."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

PREFIX = "podracer-"
_LONGEST_PARENT_BYTES = 30
"""Below it must fit `podracer-xxxxxxxx/<pod>/evaluator.sock`, and a unix socket's path has 103
bytes on macOS."""

_LOCK = "lock"
_YOUNG_S = 60.0


class RunFolder:
    """A temporary folder, made on creation (mode 0700), removed by `remove` or at the end of a
    `with`.

    It is locked while its process lives. One whose process was killed is removed when the next one
    is made."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > _LONGEST_PARENT_BYTES:
            parent = "/tmp"
        _remove_left_overs(Path(parent))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def socket(self, name: str) -> str:
        """The address of a server's socket in this folder."""
        return f"unix://{self.path / name}.sock"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def _remove_left_overs(parent: Path) -> None:
    """Remove this user's run folders that are not locked; young ones may be about to be."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # not ours, in use, or another process is removing it too
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
