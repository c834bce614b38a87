"""Authorization: one table per server, from method to roles, and the identity of the caller in a handler."""

from __future__ import annotations

import contextvars
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from podracer_core.errors import PermissionRefused, Unauthenticated
from podracer_core.rpc.resource_names import DEFAULT_PROJECT
from podracer_core.rpc.tokens import LeaseTokens, Role, TokenFiles

AUTHORIZATION = "authorization"
BEARER = "Bearer "
HEALTH_PREFIX = "/grpc.health.v1.Health/"
REFLECTION_PREFIX = "/grpc.reflection."

MethodTable = Mapping[str, Collection[Role]]
"""`{"/podracer.worker.v1.WorkerService/Collect": {Role.POD}, …}`: the roles that may call each method."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller. A lease's holder (Role.LEASE) also has the lease and the fence that its token was issued for.
    `projects`: those that the token is for; None: all."""

    role: Role
    lease_id: str = ""
    fence: int = 0
    projects: frozenset[str] | None = None


_caller: contextvars.ContextVar[Identity] = contextvars.ContextVar("podracer_caller")


def current_caller() -> Identity:
    """The identity behind the call that this handler serves. Raises LookupError outside of a guarded call."""
    return _caller.get()


def set_caller(identity: Identity) -> None:
    """Make `identity` the caller of the current context; only the server's guard calls it."""
    _caller.set(identity)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Metadata with `token` for one call, in place of the channel's own."""
    return ((AUTHORIZATION, BEARER + token),)


class Authorizer:
    """Decides whether a call may proceed. A method that is not in the table is refused for all roles.

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
            expected = " or ".join(sorted(roles)) or "no role"
            raise PermissionRefused(
                f"{method} is for {expected}; this token's role is {identity.role}", method=method, role=identity.role
            )
        return identity

    def _identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        token = bearer_token(metadata)
        if self._lease_tokens is not None and token.startswith(LeaseTokens.PREFIX):
            lease_id, fence = self._lease_tokens.verify(token)
            return Identity(Role.LEASE, lease_id, fence)
        found = self._tokens.find(token)
        if found is None:
            raise Unauthenticated("unknown token", reason="UNKNOWN_TOKEN")
        role, projects = found
        return Identity(role, projects=projects)


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token of a call. Raises Unauthenticated (NO_TOKEN)."""
    for key, value in metadata:
        if key == AUTHORIZATION and isinstance(value, str) and value.startswith(BEARER):
            return value[len(BEARER) :]
    raise Unauthenticated("no token: expected the metadata `authorization: Bearer TOKEN`", reason="NO_TOKEN")


# One project does not see another: what a request names has to be of the projects that its token is for.
#
# All resource names begin with their project, so one look at a request's strings, in the server's guard, covers every
# method, also those that are written tomorrow.

_NAME = re.compile(r"projects/([^/]*)(?:/.*)?", re.DOTALL)


def check_projects(identity: Identity, request: Any) -> None:
    """Raises PermissionRefused (OTHER_PROJECT) if `request` names a project that the caller's token is not for."""
    if identity.projects is None or not isinstance(request, Message):
        return
    others = sorted(set(_projects(request)) - identity.projects)
    if others:
        allowed = ", ".join(f"projects/{name}" for name in sorted(identity.projects))
        raise PermissionRefused(
            f"this token is for {allowed}; the request is about projects/{others[0][:100]}", reason="OTHER_PROJECT"
        )


def _projects(value: Any) -> Iterator[str]:
    """Projects named at the start of strings in a message, or in a field's value; the default for an unset `parent`."""
    if isinstance(value, str):
        if match := _NAME.fullmatch(value):
            yield match[1]
    elif isinstance(value, Message):
        if "parent" in value.DESCRIPTOR.fields_by_name and not value.parent:  # type: ignore[attr-defined]
            yield DEFAULT_PROJECT
        for _, found in value.ListFields():
            yield from _projects(found)
    elif hasattr(value, "items"):  # a map
        for pair in value.items():
            yield from _projects(pair)
    elif isinstance(value, Iterable) and not isinstance(value, bytes):  # a repeated field
        for one in value:
            yield from _projects(one)
