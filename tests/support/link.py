"""A network connection between two processes that can be cut: what is sent then arrives once it is
mended."""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK_BYTES = 1 << 16


class Link:
    """Passes TCP connections on to `target` (`host:port`). Cut, it takes connections and passes
    nothing on: to either side the other one has fallen silent, as behind a switch that has lost its
    power."""

    def __init__(self, target: str = "") -> None:
        """Without a target it waits for `lead_to`."""
        self._target = ("", 0)
        if target:
            self.lead_to(target)
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="link", daemon=True).start()

    def lead_to(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def close(self) -> None:
        """Takes no connection any more; those that are there end with their processes."""
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(near,), name="link", daemon=True).start()

    def _pass_on(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        threading.Thread(target=self._pump, args=(far, near), name="link", daemon=True).start()
        self._pump(near, far)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._open.wait()
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
