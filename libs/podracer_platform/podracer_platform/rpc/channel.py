"""Channels to other Podracer processes.

Calls made through them carry the token, have a deadline when they are unary, are repeated when the
server is UNAVAILABLE or overloaded and the method is idempotent, and raise PodracerErrors."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import grpc

from podracer_core.errors import InvalidInput
from podracer_platform.rpc import limits
from podracer_platform.rpc.address import Address, parse_address
from podracer_platform.rpc.interceptors import CallInterceptor, CallPolicy
from podracer_platform.rpc.interceptors_aio import aio_interceptors
from podracer_platform.rpc.tls import TlsFolder, TlsMaterial, role_name
from podracer_platform.rpc.tokens import TokenSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """The options of a channel.

    `idempotent_methods`: full names (`/podracer.worker.v1.WorkerService/GetStatus`) of calls that
    may be repeated. `timeout_s`: the default deadline of unary calls. With `tls` the peer must have
    the role `server`: orchestrator, learner…; `allow_insecure` permits plaintext without TLS. Unix
    sockets need neither."""

    idempotent_methods: Collection[str] = ()
    timeout_s: float = limits.UNARY_TIMEOUT_S
    message_bytes: int = limits.MESSAGE_BYTES
    allow_insecure: bool = False
    tls: TlsFolder | TlsMaterial | None = None
    server: str = ""

    def grpc_options(self, address: Address) -> list[tuple[str, Any]]:
        options: list[tuple[str, Any]] = [
            ("grpc.max_send_message_length", self.message_bytes),
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.keepalive_time_ms", int(limits.CLIENT_KEEPALIVE_S * 1000)),
            ("grpc.keepalive_timeout_ms", int(limits.KEEPALIVE_TIMEOUT_S * 1000)),
            ("grpc.initial_reconnect_backoff_ms", int(limits.RECONNECT_INITIAL_S * 1000)),
            # By this name gRPC means how long one attempt to connect may take.
            ("grpc.min_reconnect_backoff_ms", int(limits.CONNECT_TIMEOUT_S * 1000)),
            ("grpc.max_reconnect_backoff_ms", int(limits.RECONNECT_MAXIMUM_S * 1000)),
            ("grpc.service_config", service_config(self.idempotent_methods)),
        ]
        if address.is_local:
            # a proxy of the environment does not know our loopback
            options.append(("grpc.enable_http_proxy", 0))
        if self.tls is not None and self.server:
            options.append(("grpc.ssl_target_name_override", role_name(self.server)))
        return options

    def credentials(self, address: Address) -> grpc.ChannelCredentials | None:
        """The credentials; None for plain text. Raises InvalidInput for certificates that cannot be
        read any more."""
        return None if self.tls is None or address.is_unix else self.tls.channel_credentials()


def service_config(idempotent_methods: Collection[str]) -> str:
    """gRPC's service config: retry these methods on UNAVAILABLE, with bounded attempts and
    back-off.

    Also on RESOURCE_EXHAUSTED, after the time that the server names; the server forbids it if
    waiting does not help."""
    if not idempotent_methods:
        return "{}"
    names = [method.strip("/").split("/") for method in sorted(idempotent_methods)]
    policy = {
        "maxAttempts": limits.RETRY_ATTEMPTS,
        "initialBackoff": f"{limits.RETRY_INITIAL_S}s",
        "maxBackoff": f"{limits.RETRY_MAXIMUM_S}s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
    }
    config = {
        "methodConfig": [
            {"name": [{"service": s, "method": m} for s, m in names], "retryPolicy": policy}
        ]
    }
    return json.dumps(config)


def open_channel(
    address: str, token: str | TokenSource | None = None, options: ChannelOptions | None = None
) -> grpc.Channel:
    """A channel to `address`; it connects at the first call.

    Every call carries `token`, unless the call's own metadata has one (`auth.bearer`); a source
    (`tokens.FileToken`) is read each time. Raises InvalidInput for a malformed address, or one that
    requires TLS."""
    options = options or ChannelOptions()
    parsed = _target(address, options)
    credentials, grpc_options = options.credentials(parsed), options.grpc_options(parsed)
    if credentials is None:
        channel = grpc.insecure_channel(str(parsed), grpc_options)
    else:
        channel = grpc.secure_channel(str(parsed), credentials, grpc_options)
    return grpc.intercept_channel(channel, CallInterceptor(_policy(parsed, token, options)))


def open_aio_channel(
    address: str, token: str | TokenSource | None = None, options: ChannelOptions | None = None
) -> grpc.aio.Channel:
    """`open_channel` for asyncio."""
    options = options or ChannelOptions()
    parsed = _target(address, options)
    credentials, grpc_options = options.credentials(parsed), options.grpc_options(parsed)
    interceptors = aio_interceptors(_policy(parsed, token, options))
    if credentials is None:
        return grpc.aio.insecure_channel(
            str(parsed), options=grpc_options, interceptors=interceptors
        )
    return grpc.aio.secure_channel(
        str(parsed), credentials, options=grpc_options, interceptors=interceptors
    )


def _target(text: str, options: ChannelOptions) -> Address:
    address = parse_address(text)
    if not address.is_unix and address.port == 0:
        raise InvalidInput(
            f"address {text!r}: a client needs the port", reason="INVALID_ADDRESS", address=text
        )
    if not address.is_local and options.tls is None:
        if not options.allow_insecure:
            raise InvalidInput(
                f"cannot call {address} without TLS: not a loopback address; the token would cross "
                "the network in plain text (allow insecure connections to do it all the same)",
                reason="INSECURE_ADDRESS",
                address=address,
            )
        logger.warning(
            "calling %s without TLS: the token and all data cross the network in plain text",
            address,
        )
    return address


def _policy(
    address: Address, token: str | TokenSource | None, options: ChannelOptions
) -> CallPolicy:
    if isinstance(token, str):
        text = token
        return CallPolicy(str(address), lambda: text, options.timeout_s)
    return CallPolicy(str(address), token, options.timeout_s)
