"""The state folder of Podracer on one machine; one launcher uses it at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from podracer_client.servers import FILE_NAME
from podracer_core.errors import FieldViolation, InvalidInput, NotFound, PreconditionFailed


class StateFolder:
    """Locked while open: `with StateFolder.open(path) as state`.

    lock  connection.json  tokens/{client,pod,control}  orchestrator.sqlite  leaderboard.sqlite
    objects/  cache/  logs/
    traces/
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> Self:
        """Make the folder if it is missing, and lock it.

        Raises InvalidInput if it cannot be made or written, PreconditionFailed while another
        process has it, NotFound if it is missing and `create` is false."""
        path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would lose the user's symbolic link
        if not create and not path.is_dir():
            raise NotFound(
                f"there is no state folder {path}", reason="NO_STATE_FOLDER", folder=path
            )
        made = _make(path)
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            _unmake(made)
            raise _unwritable(path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(lock, 20).decode(errors="replace").strip()
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise _unwritable(path, error) from error
            raise PreconditionFailed(
                f"the state folder {path} is in use by process {owner or 'unknown'}; stop that "
                "one, or choose another --dir",
                reason="STATE_FOLDER_IN_USE",
                folder=path,
            ) from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        (path / FILE_NAME).unlink(missing_ok=True)  # of a launcher that was killed
        return cls(path, lock)

    @property
    def tokens(self) -> Path:
        return self.path / "tokens"

    @property
    def objects(self) -> Path:
        """The object store's root."""
        return self.objects_of(self.path)

    @staticmethod
    def objects_of(folder: Path) -> Path:
        """The object store's root in the state folder at `folder`, locked or not."""
        return folder / "objects"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def traces(self) -> Path:
        """Files of spans."""
        return self.traces_of(self.path)

    @staticmethod
    def traces_of(folder: Path) -> Path:
        """The folder of span files in the state folder at `folder`, locked or not."""
        return folder / "traces"

    @staticmethod
    def database_name(service: str) -> str:
        return f"{service}.sqlite"

    def database(self, service: str) -> Path:
        return self.path / self.database_name(service)

    def close(self) -> None:
        """Remove the connection file and release the lock."""
        (self.path / FILE_NAME).unlink(missing_ok=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _make(path: Path) -> list[Path]:
    """Make the folder and its parents; the ones that were not there, innermost last."""
    made: list[Path] = []
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file is there")
        for folder in reversed(missing):
            folder.mkdir(mode=0o777 if folder != path else 0o700)
            made.append(folder)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileExistsError:
        return made  # another process made it meanwhile
    except OSError as error:
        _unmake(made)
        raise _unwritable(path, error) from error
    return made


def _unmake(made: list[Path]) -> None:
    for folder in reversed(made):
        folder.rmdir()


def _unwritable(path: Path, error: OSError) -> InvalidInput:
    problem = f"cannot write the state folder {path}: {error.strerror}"
    violation = FieldViolation("--dir", problem)
    return InvalidInput(problem, violations=[violation], reason="UNWRITABLE_FOLDER", folder=path)
