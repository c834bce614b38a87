"""Options of a server, and checks of its address with clear errors."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from podracer_core.errors import FieldViolation, InvalidInput
from podracer_platform.rpc import limits
from podracer_platform.rpc.address import Address, parse_address
from podracer_platform.rpc.auth import access_of
from podracer_platform.rpc.tls import TlsFolder

logger = logging.getLogger(__name__)


RequestBytes: TypeAlias = Mapping[str, int | Callable[[], int]]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """
    request_bytes       the largest requests that are not those that the protos state; a function
                        tells one anew for each call
    concurrent_calls    None: the default of the kind of server
    places, large_bytes see admission.py
    connection_streams  the most calls of a connection; gRPC resets further ones
    connection_age_s    after so many seconds a connection takes no new calls, and so many later it
                        is closed
    allow_insecure      listen beyond this machine without `tls`; unix sockets have no TLS: only
                        this user can open them
    health              address of a second port for health alone (health.py); "": none
    """

    request_bytes: RequestBytes = field(default_factory=dict)
    concurrent_calls: int | None = None
    places: int = limits.PLACES
    large_bytes: int = limits.LARGE_BYTES
    connection_streams: int = limits.CONNECTION_STREAMS
    connection_age_s: tuple[float, float] | None = None
    allow_insecure: bool = False
    tls: TlsFolder | None = None
    reflection: bool = True
    health: str = ""

    def most_bytes(self, method: str) -> int:
        """The largest request of a method."""
        found = (
            self.request_bytes.get(method) or access_of(method).max_bytes or limits.REQUEST_BYTES
        )
        return found if isinstance(found, int) else found()

    def grpc_options(self, methods: Iterable[str]) -> list[tuple[str, Any]]:
        """gRPC's own limit is one for all `methods` of the server."""
        stated = (access_of(method).max_bytes for method in methods)
        fixed = (size for size in self.request_bytes.values() if isinstance(size, int))
        age: list[tuple[str, Any]] = []
        if self.connection_age_s is not None:
            age_ms, grace_ms = (int(seconds * 1000) for seconds in self.connection_age_s)
            age = [
                ("grpc.max_connection_age_ms", age_ms),
                ("grpc.max_connection_age_grace_ms", grace_ms),
            ]
        return [
            *age,
            ("grpc.server.max_pending_requests", limits.PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", limits.PENDING_CALLS),
            ("grpc.so_reuseport", 0),  # else a second server would share the port in silence
            ("grpc.max_send_message_length", limits.MESSAGE_BYTES),
            ("grpc.max_receive_message_length", max((limits.REQUEST_BYTES, *stated, *fixed))),
            # a compressed request would grow before it is measured
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.server_handshake_timeout_ms", int(limits.HANDSHAKE_S * 1000)),
            ("grpc.max_concurrent_streams", self.connection_streams),
            ("grpc.keepalive_time_ms", int(limits.SERVER_KEEPALIVE_S * 1000)),
            ("grpc.keepalive_timeout_ms", int(limits.KEEPALIVE_TIMEOUT_S * 1000)),
            (
                "grpc.http2.min_recv_ping_interval_without_data_ms",
                int(limits.MINIMUM_PING_INTERVAL_S * 1000),
            ),
        ]


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
