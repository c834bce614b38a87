"""Spans in files of this machine: one JSON object per line, one file per process, bounded in
size."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

from podracer_core.errors import InvalidInput
from podracer_platform.telemetry.logging import redact
from podracer_platform.telemetry.spans import FinishedSpan, SpanSink

logger = logging.getLogger(__name__)

ENDING = ".spans.jsonl"
_FORMER = ".former" + ENDING
_FULL_FILES = 16  # that a folder has room for: each process has two at most
_MOST_FILES = 400  # whatever their size


class SpanFiles(SpanSink):
    """Writes each span at once, so that no finished span is lost when this process is killed.

    The first line of a file names its process. A full file becomes the process's previous file and
    replaces the one before. In a full folder the files that were written to least recently are
    removed, whichever process wrote them."""

    def __init__(self, folder: Path, service: str, folder_bytes: int) -> None:
        """Raises InvalidInput if the folder cannot be created or written."""
        self._folder = folder
        self._folder_bytes = folder_bytes
        self._file_bytes = folder_bytes // _FULL_FILES
        name = f"{service}-{os.getpid()}-{secrets.token_hex(3)}"
        self._path, self._former = folder / f"{name}{ENDING}", folder / f"{name}{_FORMER}"
        self._header = {"service": service, "process": name}
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._size_bytes = 0
        self._ended = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise InvalidInput(
                f"PODRACER_TRACE_DIR: cannot write to {folder}: {error.strerror}; expected a "
                "folder, or nothing",
                reason="FOLDER_UNWRITABLE",
            ) from error

    def add(self, finished: FinishedSpan) -> None:
        line = _line(_span_object(finished))
        with self._lock:
            if self._ended:
                return
            try:
                self._make_room(len(line))
                self._write(line)
            except OSError as error:
                logger.warning("stopped writing spans to %s: %s", self._folder, error.strerror)
                self._end()

    def close(self, timeout_s: float) -> None:
        with self._lock:
            self._end()

    def _make_room(self, size_bytes: int) -> None:
        """Open a file with room for that many bytes. Before the first span no file exists."""
        if self._descriptor is not None and self._size_bytes + size_bytes > self._file_bytes:
            self._path.replace(self._former)
            self._open()
        elif self._descriptor is None or not os.fstat(self._descriptor).st_nlink:
            self._open()  # the first time, or the folder was full and we had long been silent

    def _open(self) -> None:
        self._end()
        self._ended = False
        self._sweep()
        self._descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._size_bytes = os.fstat(self._descriptor).st_size
        self._write(_line(self._header))

    def _write(self, line: bytes) -> None:
        assert self._descriptor is not None, "it is open"
        self._size_bytes += os.write(self._descriptor, line)

    def _end(self) -> None:
        self._ended = True
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _sweep(self) -> None:
        """Remove old files until there is room for one more."""
        found = sorted(_sizes(self._folder), reverse=True)
        room = self._folder_bytes - self._file_bytes
        for number, (_, size_bytes, path) in enumerate(found):
            room -= size_bytes
            if room < 0 or number >= _MOST_FILES:
                with contextlib.suppress(OSError):
                    path.unlink()


def _sizes(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """The time of the last write, the size and the path of each file of spans."""
    for path in folder.glob(f"*{ENDING}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            yield status.st_mtime, status.st_size, path


def _span_object(finished: FinishedSpan) -> dict[str, object]:
    found: dict[str, object] = {
        "trace": finished.context.trace_id,
        "span": finished.context.span_id,
        "parent": finished.parent_id,
        "name": finished.name,
        "kind": finished.kind,
        "start_ns": finished.start_ns,
        "end_ns": finished.end_ns,
        "attributes": dict(finished.attributes),
    }
    return found | {"error": redact(finished.error)} if finished.error else found


def _line(value: dict[str, object] | dict[str, str]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
