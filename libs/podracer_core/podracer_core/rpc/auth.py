"""Who may call what: one table a server, from method to roles, and the identity of the caller in a handler."""

from __future__ import annotations

import contextvars
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from podracer_core.errors import PermissionRefused, Unauthenticated
from podracer_core.rpc.tokens import LeaseTokens, Role, TokenFiles

AUTHORIZATION = "authorization"
BEARER = "Bearer "
HEALTH_PREFIX = "/grpc.health.v1.Health/"
REFLECTION_PREFIX = "/grpc.reflection."

MethodTable = Mapping[str, Collection[Role]]
"""`{"/podracer.worker.v1.WorkerService/Collect": {Role.POD}, …}`: every method of a server, with who may call it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is calling; a lease's holder (Role.LEASE) also has the lease and the fence that its token was issued for.
    `projects` are those that the token is for; None: all."""

    role: Role
    lease_id: str = ""
    fence: int = 0
    projects: frozenset[str] | None = None


_caller: contextvars.ContextVar[Identity] = contextvars.ContextVar("podracer_caller")


def current_caller() -> Identity:
    """The identity behind the call that this handler serves. Raises LookupError outside of a guarded call."""
    return _caller.get()


def set_caller(identity: Identity) -> None:
    """Make `identity` the caller of the present context; only the server's guard does this."""
    _caller.set(identity)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Metadata that presents `token` for one call, in place of the channel's own."""
    return ((AUTHORIZATION, BEARER + token),)


class Authorizer:
    """Decides whether a call may go on. A method that is not in the table is refused to everyone.

    Health is open to all; reflection to every valid token.
    """

    def __init__(self, methods: MethodTable, tokens: TokenFiles, lease_tokens: LeaseTokens | None = None) -> None:
        self._methods = {method: frozenset(roles) for method, roles in methods.items()}
        self._tokens = tokens
        self._lease_tokens = lease_tokens

    @property
    def service_names(self) -> tuple[str, ...]:
        """The full names of the services in the table, sorted."""
        return tuple(sorted({method.split("/")[1] for method in self._methods}))

    def authorize(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        """The identity of the caller of `method`. Raises Unauthenticated or PermissionRefused."""
        identity = self._identify(metadata)
        if method.startswith(REFLECTION_PREFIX):
            return identity
        roles = self._methods.get(method, frozenset())
        if identity.role not in roles:
            expected = " or ".join(sorted(roles)) or "nobody"
            raise PermissionRefused(
                f"{method} is for {expected}; this token's role is {identity.role}", method=method, role=identity.role
            )
        return identity

    def _identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        token = _bearer_token(metadata)
        if self._lease_tokens is not None and token.startswith(LeaseTokens.PREFIX):
            lease_id, fence = self._lease_tokens.verify(token)
            return Identity(Role.LEASE, lease_id, fence)
        found = self._tokens.find(token)
        if found is None:
            raise Unauthenticated("this server does not know the token", reason="UNKNOWN_TOKEN")
        role, projects = found
        return Identity(role, projects=projects)


def _bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    for key, value in metadata:
        if key == AUTHORIZATION and isinstance(value, str) and value.startswith(BEARER):
            return value[len(BEARER) :]
    raise Unauthenticated("no token: expected the metadata `authorization: Bearer TOKEN`", reason="NO_TOKEN")
