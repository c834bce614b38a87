"""A private folder with a short path for the unix sockets of one run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "podracer-"
_LONGEST_PARENT_BYTES = 30
"""Below it must fit `podracer-xxxxxxxx/<pod>/evaluator.sock`, and a unix socket's path has 103 bytes on macOS."""


class RunFolder:
    """Made on creation (mode 0700), removed by `remove` or at the end of a `with`."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > _LONGEST_PARENT_BYTES and sys.platform != "win32":
            parent = "/tmp"
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))

    def socket(self, name: str) -> str:
        """The address of a server's socket in this folder."""
        return f"unix://{self.path / name}.sock"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def remove_left_over(path: str) -> None:
    """Remove the run folder of a launcher that was killed, if `path` is one of ours."""
    folder = Path(path)
    if (
        folder.name.startswith(PREFIX)
        and folder.is_dir()
        and not folder.is_symlink()
        and folder.stat().st_uid == os.getuid()
    ):
        shutil.rmtree(folder, ignore_errors=True)
