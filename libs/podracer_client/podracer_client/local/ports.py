"""Ports of this machine: kept for a service of ours, and who has one that is taken."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from podracer_core.rpc.address import Address, parse_address

_LISTENING = "0A"  # the state in /proc/net/tcp
_HIGHEST = 65535


class FixedAddress:
    """An address whose port stays the same: a service that is started again must be found where it was.

    Port 0 is replaced by a free one. On Linux it stays reserved while this object lives: its socket is bound and does
    not listen, so that a server may listen there and the system gives the port to no one else.
    """

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
    """The process that listens on a port, for a message: `process 4242, the Podracer of /home/a/runs`.

    Empty where the system does not tell: another user's process, or no Linux.
    """
    with suppress(OSError):
        inodes = _listening_inodes(port)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if any(_target(link) in inodes for link in (folder / "fd").iterdir()):
                    return _describe(folder)
    return ""


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed meanwhile
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


def _listening_inodes(port: int) -> set[str]:
    """What /proc/<pid>/fd says of the sockets that listen on a port."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in (Path("/proc/net") / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _describe(folder: Path) -> str:
    command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    process = f"process {folder.name}"
    if not any(word.startswith("podracer_") for word in command):
        return f"{process} ({Path(command[0]).name})"
    variables = dict(
        entry.split("=", 1) for entry in (folder / "environ").read_text(errors="replace").split("\0") if "=" in entry
    )
    database = variables.get("PODRACER_DATABASE", "").removeprefix("sqlite:///")
    return (
        f"{process}, the Podracer of {Path(database).parent}" if database.startswith("/") else f"{process} (Podracer)"
    )
