"""What processes with user code print. A service keeps the end of it, and lets a bounded part into
its own log."""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time

KEPT_BYTES = 256 << 10
_LINES, _CHARACTERS = 20, 1_200
_LOG_BYTES, _LOG_BYTES_A_SECOND = 64 << 10, 1 << 10
_READ_BYTES, _READS = 64 << 10, 64
_PAUSE_S = 0.005  # a process that prints line by line would wake us with each
_ENDING_S = 0.2
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\].*?(\x07|\x1b\\)|.)")


class ChildOutput:
    """The last KEPT_BYTES that the processes of a batch of environments have printed.

    is_kept  whether this process is a service; else all they print goes on to its stderr, and
             nothing is kept
    stderr   the descriptor to print to; None: this process's
    """

    is_kept = False

    def __init__(self) -> None:
        self._lock, self._kept = threading.Lock(), bytearray()
        self._pipe, self.stderr = -1, None
        if ChildOutput.is_kept:
            self._pipe, self.stderr = os.pipe()
            os.set_blocking(self._pipe, False)
            self._thread = threading.Thread(
                target=self._drain, name="environment-output", daemon=True
            )
            self._thread.start()

    def kept(self) -> bytes:
        """The end of the output."""
        self._take()
        return bytes(self._kept)

    def after(self, traceback: str) -> str:
        """`traceback` and the last lines of the output, without control characters."""
        lines = _ESCAPE.sub(
            "", self.kept()[-16 * _CHARACTERS :].decode(errors="replace")
        ).splitlines()
        lines = [
            "".join(each for each in line if each.isprintable() or each == "\t").rstrip()
            for line in lines
        ]
        text = "\n".join([line for line in lines if line][-_LINES:])[-_CHARACTERS:]
        return "\n".join(
            filter(None, (traceback, text and f"The last output of the environment:\n{text}\n"))
        )

    def close(self) -> None:
        """Close our end; what is printed is read on while a process that has the other end
        lives."""
        stderr, self.stderr = self.stderr, None
        if stderr is not None:
            os.close(stderr)
            self._thread.join(_ENDING_S)

    def _drain(self) -> None:
        waiting = select.poll()
        waiting.register(self._pipe, select.POLLIN)
        while waiting.poll() and self._take():
            time.sleep(_PAUSE_S)
        with self._lock:
            os.close(self._pipe)
            self._pipe = -1

    def _take(self) -> bool:
        """Read what has been printed. False once nothing can follow."""
        with self._lock:
            for _ in range(_READS if self._pipe >= 0 else 0):
                try:
                    data = os.read(self._pipe, _READ_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    return False
                self._kept += data
                del self._kept[:-KEPT_BYTES]
                _log.write(data)
        return True


class _Log:
    """Writes whole lines to stderr, at most some bytes a second; the rest is left out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = float(_LOG_BYTES)
        self._time = time.monotonic()
        self._is_told = False

    def write(self, data: bytes) -> None:
        with self._lock:
            now = time.monotonic()
            self._left = min(
                float(_LOG_BYTES), self._left + (now - self._time) * _LOG_BYTES_A_SECOND
            )
            self._time = now
            written = data[: int(self._left)]
            if len(written) < len(data):
                written = written[: written.rfind(b"\n") + 1]
            self._left -= len(written)
            if len(written) < len(data) and not self._is_told:
                written += b"(the environments print too much: this log has a part of it)\n"
                self._is_told = True
            with contextlib.suppress(OSError):
                os.write(2, written)


_log = _Log()
