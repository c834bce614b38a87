"""Addresses of servers: `unix:///path`, `host:port`, `[::1]:port`, `dns:///host:port`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from podracer_core.errors import FieldViolation, InvalidInput

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
