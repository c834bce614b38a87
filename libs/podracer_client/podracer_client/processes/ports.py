"""Ports of this machine: reserving one for a service, and finding the process that has one."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from podracer_platform.rpc.address import Address, parse_address

if TYPE_CHECKING:
    import psutil

_HIGHEST = 65535


class FixedAddress:
    """An address whose port stays the same, so that a restarted service is found again.

    Port 0 is replaced by a free one. On Linux it stays reserved while this object lives: its socket
    is bound and does not listen, so that a server may listen there and the system gives the port to
    no other process."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._reservation: socket.socket | None = None
        parsed = parse_address(address)
        if parsed.is_unix or parsed.port:
            return
        self._reservation = _bound(parsed)
        self.address = str(parsed.with_port(self._reservation.getsockname()[1]))
        if not Path("/proc/net/tcp").exists():
            self._reservation.close()

    def close(self) -> None:
        """Give the port back."""
        if self._reservation is not None:
            self._reservation.close()


def free_ports(address: Address, count: int) -> list[Address]:
    """Addresses of the same host, with the first free ports above its own."""
    found: list[Address] = []
    for port in range(address.port + 1, _HIGHEST + 1):
        candidate = address.with_port(port)
        with suppress(OSError):
            with _bound(candidate) as probe:
                probe.listen(1)
            found.append(candidate)
        if len(found) == count:
            break
    return found


def listener_of(port: int) -> str:
    """The process that listens on a port, for a message: `process 4242, the Podracer of
    /home/a/runs`.

    Empty where the system does not tell: another user's process, or macOS.
    """
    import psutil  # late: only this message needs it

    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            is_at_port = connection.laddr and connection.laddr.port == port
            if is_at_port and connection.status == psutil.CONN_LISTEN and connection.pid:
                return describe_process(psutil.Process(connection.pid))
    return ""


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address.host, address.port))
    except OSError:
        probe.close()
        raise
    return probe


def describe_process(process: psutil.Process) -> str:
    """A process in words for a message; one of ours with its state folder."""
    if not any(word.startswith("podracer_") for word in process.cmdline()):
        return f"process {process.pid} ({process.name()})"
    database = Path(process.environ().get("PODRACER_DATABASE", "").removeprefix("sqlite:///"))
    folder = f", the Podracer of {database.parent}" if database.is_absolute() else " (Podracer)"
    return f"process {process.pid}{folder}"
