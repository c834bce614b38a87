"""Addresses of servers: `unix:///path`, `host:port`, `[::1]:port`, `dns:///host:port`."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podracer_core.errors import FieldViolation, InvalidInput

if TYPE_CHECKING:
    import grpc

    from podracer_platform.rpc.tls import TlsFolder

EXPECTED = "unix:///absolute/path, host:port, [ipv6]:port or dns:///host:port"
UNIX_PATH_BYTES = 107
"""The longest path that the kernel takes for a unix socket on Linux (macOS: 103)."""


@dataclass(frozen=True, slots=True)
class Address:
    """One parsed address: either `path` (a unix socket) or `host` and `port`; `scheme` is `dns:///`
    or empty."""

    path: str = ""
    host: str = ""
    port: int = 0
    scheme: str = ""

    @property
    def is_unix(self) -> bool:
        return bool(self.path)

    @property
    def is_local(self) -> bool:
        """Whether traffic stays on this machine: a unix socket, `localhost` or a loopback
        address."""
        if self.is_unix or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_wildcard(self) -> bool:
        """Whether a server listens at every address of its machine; a caller cannot use such an
        address."""
        return self.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound

    def with_port(self, port: int) -> Address:
        return Address(self.path, self.host, port, self.scheme)

    def __str__(self) -> str:
        if self.is_unix:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse an address; port 0 is accepted here and means "any free one" to a server.

    Raises InvalidInput when the text is none of the accepted forms.
    """
    if text.startswith("unix:"):
        return _parse_unix(text)
    scheme = "dns:///" if text.startswith("dns:///") else ""
    host, separator, port = text.removeprefix(scheme).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "/" in host:
        raise _invalid(text, f"expected {EXPECTED}")
    if not separator or not host:
        raise _invalid(text, f"expected {EXPECTED}")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise _invalid(text, f"the port is {port!r}, expected a number from 0 to 65535")
    return Address(host=host, port=int(port), scheme=scheme)


def _parse_unix(text: str) -> Address:
    path = text.removeprefix("unix://")
    if not path.startswith("/"):
        raise _invalid(text, "a unix socket needs an absolute path: unix:///absolute/path")
    if len(path.encode()) > UNIX_PATH_BYTES:
        raise _invalid(
            text,
            f"the path of a unix socket has at most {UNIX_PATH_BYTES} bytes, this has "
            f"{len(path.encode())}",
        )
    return Address(path=path)


def _invalid(text: str, problem: str) -> InvalidInput:
    return InvalidInput(
        f"address {text!r}: {problem}",
        reason="INVALID_ADDRESS",
        violations=[FieldViolation("address", problem)],
        address=text,
    )


logger = logging.getLogger(__name__)


def prepare_address(
    text: str, *, allow_insecure: bool = False, has_tls: bool = False, is_harmless: bool = False
) -> Address:
    """Check that a server may and can listen at `text`; makes a unix socket's folder and removes a
    stale socket.

    A harmless server asks for no token and returns no data. Raises InvalidInput that names the
    address if it is malformed, taken, not of this machine, or reachable from other machines without
    TLS and without `allow_insecure`."""
    address = parse_address(text)
    if address.is_unix:
        _clear_socket(address)
        return address
    if not (address.is_local or has_tls or is_harmless):
        if not allow_insecure:
            raise _refused(
                address,
                "INSECURE_ADDRESS",
                "not a loopback address; without TLS (PODRACER_TLS) tokens would cross the network "
                "in plain text",
            )
        logger.warning(
            "listening at %s without TLS: tokens and data cross the network in plain text", address
        )
    if address.port:
        _probe_port(address)
    return address


def bind(server: grpc.Server | grpc.aio.Server, address: Address, tls: TlsFolder | None) -> str:
    """Bind a server to a prepared address; returns the address to call. Raises InvalidInput if gRPC
    cannot."""
    target = str(address).removeprefix(address.scheme)
    try:
        if tls is None or address.is_unix:
            port = server.add_insecure_port(target)
        else:
            port = server.add_secure_port(target, tls.server_credentials())
    except RuntimeError as error:
        raise _refused(address, "ADDRESS_UNUSABLE", str(error).splitlines()[0]) from error
    if not address.is_unix:
        return str(address.with_port(port))
    Path(address.path).chmod(0o600)
    return str(address)


def _probe_port(address: Address) -> None:
    """Bind once ourselves: the operating system's reason is clearer than gRPC's, which also writes
    to stderr."""
    failures: list[OSError] = []
    try:
        targets = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _unusable(address, error) from error
    for family, _, _, _, target in targets:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(target)
                probe.listen(1)
        except OSError as error:
            failures.append(error)
    # `localhost` often has an IPv6 address that the machine lacks: that alone is no failure, a
    # taken port is.
    taken = [error for error in failures if error.errno == errno.EADDRINUSE]
    if taken or len(failures) == len(targets):
        raise _unusable(address, (taken or failures)[0])


def _unusable(address: Address, error: OSError) -> InvalidInput:
    reason = "ADDRESS_IN_USE" if error.errno == errno.EADDRINUSE else "ADDRESS_UNUSABLE"
    return _refused(address, reason, error.strerror or str(error))


def _clear_socket(address: Address) -> None:
    path = Path(address.path)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise _refused(
                address, "ADDRESS_UNUSABLE", f"the folder {path.parent} cannot be written"
            )
        if not path.exists():
            return
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise _refused(
                address, "ADDRESS_IN_USE", "a file of that name exists and is not a socket"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(address.path)
            except ConnectionRefusedError:
                path.unlink()  # left behind by a server that was killed
                return
        raise _refused(address, "ADDRESS_IN_USE", "another server uses this socket")
    except OSError as error:
        raise _unusable(address, error) from error


def _refused(address: Address, reason: str, problem: str) -> InvalidInput:
    return InvalidInput(
        f"cannot listen at {address}: {problem}",
        reason=reason,
        violations=[FieldViolation("address", problem)],
        address=address,
    )
