"""What a caller may do: the roles of each method of each server, the bounds of requests, and the
projects that they may name; and the identity of the caller in a handler."""

from __future__ import annotations

import contextvars
import functools
import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from podracer.common.v1 import access_pb2
from podracer_core.errors import FieldViolation, InvalidInput, PermissionRefused, Unauthenticated
from podracer_platform.rpc.resource_names import DEFAULT_PROJECT, last_part
from podracer_platform.rpc.tokens import (
    SIGNED_PREFIX,
    LeaseTokens,
    Places,
    Role,
    SignedTokens,
    TokenFiles,
    TokensShownHere,
    hash_token,
)

AUTHORIZATION = "authorization"
BEARER = "Bearer "
CHECK = "/grpc.health.v1.Health/Check"
"""The method that tells the health, to all."""
REFLECTION_PREFIX = "/grpc.reflection."

MethodTable = Mapping[str, Collection[Role]]
"""`{"/podracer.worker.v1.WorkerService/Collect": {Role.POD}, …}`: the roles that may call each
method."""


def methods_of(server: str) -> MethodTable:
    """The table of a server, such as `worker`, as its protos state it."""
    package = importlib.import_module(f"podracer.{server}.v1")
    names = [f"{package.__name__}.{one.name}" for one in pkgutil.iter_modules(package.__path__)]
    files = [
        importlib.import_module(name).DESCRIPTOR for name in names if name.endswith("_service_pb2")
    ]
    services = [service for file in files for service in file.services_by_name.values()]
    methods = [
        f"/{service.full_name}/{method.name}" for service in services for method in service.methods
    ]
    roles = access_pb2.Role.Name
    return {
        method: {
            Role(roles(role).removeprefix("ROLE_").lower()) for role in access_of(method).roles
        }
        for method in methods
    }


@functools.cache
def access_of(method: str) -> access_pb2.Access:
    """What the proto of a method states; of one that is in no proto, nothing."""
    try:
        found = descriptor_pool.Default().FindMethodByName(method[1:].replace("/", "."))
    except KeyError:
        return access_pb2.Access()
    return found.GetOptions().Extensions[access_pb2.access]


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller. A lease's holder (Role.LEASE) also has the lease and the fence that its token was
    issued for. `projects`: those that the token is for; None: all. `token`: the id of a signed
    token, or the first digits of another's digest; `name`: of a signed one."""

    role: Role
    lease_id: str = ""
    fence: int = 0
    projects: frozenset[str] | None = None
    token: str = ""
    name: str = ""


_caller: contextvars.ContextVar[Identity] = contextvars.ContextVar("podracer_caller")


def current_caller() -> Identity:
    """The identity behind the call that this handler serves. Raises LookupError outside of a
    guarded call."""
    return _caller.get()


def set_caller(identity: Identity) -> None:
    """Make `identity` the caller of the current context; only the server's guard calls it."""
    _caller.set(identity)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Metadata with `token` for one call, in place of the channel's own."""
    return ((AUTHORIZATION, BEARER + token),)


class Authorizer:
    """Decides whether a call may proceed. A method that is not in the table is refused for all
    roles.

    Health is open to all; reflection to every valid token.
    """

    def __init__(
        self, methods: MethodTable, tokens: TokenFiles, lease_tokens: LeaseTokens | None = None
    ) -> None:
        self._methods = {method: frozenset(roles) for method, roles in methods.items()}
        self._tokens = tokens
        self._signed_tokens = SignedTokens(tokens.directory)
        self._lease_tokens = lease_tokens
        self._audience: Container[str] = frozenset(
            part for service in self.service_names for part in service.split(".")[1:2]
        )
        prepare_bounds(self.service_names)

    def accept_shown(self, kind: str, address: str) -> None:
        """Also accept what learners show to a worker or an evaluator (`kind`) at `address`."""
        self._signed_tokens = TokensShownHere(self._tokens.directory)
        self._audience = Places(kind, address)

    @property
    def methods(self) -> Collection[str]:
        """The methods in the table."""
        return self._methods.keys()

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
            text = f"{method} is for {expected}; this token's role is {identity.role}"
            raise PermissionRefused(
                text, method=method, role=identity.role, token=identity.token, name=identity.name
            )
        return identity

    def _identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        token = bearer_token(metadata)
        if self._lease_tokens is not None and token.startswith(LeaseTokens.PREFIX):
            name, fence = self._lease_tokens.verify(token)
            # Tokens of the version before have only the lease's id.
            return Identity(
                Role.LEASE, last_part(name), fence, frozenset(_projects([name])) or None
            )
        if token.startswith(SIGNED_PREFIX):
            claims = self._signed_tokens.verify(token, self._audience)
            projects = frozenset(claims.projects) or None
            return Identity(Role(claims.role), projects=projects, token=claims.id, name=claims.name)
        found = self._tokens.find(token)
        if found is None:
            raise Unauthenticated("unknown token", reason="UNKNOWN_TOKEN")
        role, projects = found
        return Identity(role, projects=projects, token=hash_token(token)[:23])


def short_name(method: str) -> str:
    """`/podracer.worker.v1.WorkerService/Collect` -> `WorkerService/Collect`."""
    return method.rpartition(".")[2].lstrip("/")


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token of a call. Raises Unauthenticated (NO_TOKEN)."""
    for key, value in metadata:
        if key == AUTHORIZATION and isinstance(value, str) and value.startswith(BEARER):
            return value[len(BEARER) :]
    raise Unauthenticated(
        "no token: expected the metadata `authorization: Bearer TOKEN`", reason="NO_TOKEN"
    )


# The bounds of requests are those of the protos (`buf.validate`), checked before a handler sees
# anything. A renewal of usual size costs 0.04 ms, a step of a session or a request to act 0.005 ms.
# Tensors by name, which would cost 0.05 ms, are left to their decoder (`IGNORE_ALWAYS` in the
# protos).

Row = TypeVar("Row")

PAGE_BYTES = 1024 * 1024
"""A page of a listing ends early rather than grow larger."""

_SHOWN = 100


def prepare_bounds(services: Iterable[str]) -> None:
    """Compile the bounds of all requests to `services`, so that no call waits for it."""
    for service in services:
        with suppress(KeyError):  # services without a proto have no bounds
            for method in descriptor_pool.Default().FindServiceByName(service).methods:
                check_bounds(GetMessageClass(method.input_type)())


def check_bounds(request: Any) -> None:
    """Raises InvalidInput (OUT_OF_BOUNDS) with the first field of `request` that its proto does not
    allow."""
    if not (isinstance(request, Message) and request.DESCRIPTOR.full_name.startswith("podracer.")):
        return
    from protovalidate import collect_violations  # late: 20 MiB that only servers need

    for violation in collect_violations(request, fail_fast=True):
        found = violation.proto
        field = _path(found.field.elements if found.field is not None else ())
        problem = f"{_shown(violation.field_value)}, but {found.message}"
        raise InvalidInput(
            f"{field}: {problem}",
            violations=[FieldViolation(field, problem)],
            reason="OUT_OF_BOUNDS",
        )


def page(
    rows: Iterable[Row], size: int, message: Callable[[Row], Any], token: Callable[[Row], str]
) -> tuple[list[Any], str]:
    """The messages of the first rows, and the token of the last of them if others follow.

    They are at most `size`, and as many as fit into PAGE_BYTES, but at least one.
    """
    listed: list[Any] = []
    left, last = PAGE_BYTES, ""
    for row in rows:
        found = message(row)
        left -= found.ByteSize()
        if len(listed) == size or (listed and left < 0):
            return listed, last
        listed.append(found)
        last = token(row)
    return listed, ""


def _path(elements: Iterable[Any]) -> str:
    """`members[0].metrics["kl"]`."""
    parts = []
    for element in elements:
        at = element.subscript
        key = (
            ""
            if at is None
            else f"[{at.value}]"
            if at.field == "index"
            else f"[{str(at.value)[:_SHOWN]!r}]"
        )
        parts.append(f"{element.field_name}{key}")
    return ".".join(parts)


def _shown(value: Any) -> str:
    """What was sent, in short."""
    if isinstance(value, str) and len(value) > _SHOWN:
        return f"has {len(value.encode())} bytes"
    if isinstance(value, str | int | float):
        return f"is {value!r}"
    return f"has {len(value)} items" if isinstance(value, Sized) else "is not allowed"


# One project does not see another: what a request names has to be of the projects that its token is
# for.
#
# All resource names begin with their project, so one look at a request's strings, in the server's
# guard, covers every method, also those that are written tomorrow.

_START = "projects/"
_POD = re.compile(r"projects/[^/]+/pods/[^/]+")


def check_projects(identity: Identity, request: Any) -> None:
    """Raises PermissionRefused (OTHER_PROJECT) if `request` names a project that the caller's token
    is not for.

    A lease's holder may name its pod, because pods of the pool serve jobs of all projects.
    """
    if identity.projects is None or not isinstance(request, Message):
        return
    others = sorted(_projects(texts(request), pods=identity.role != Role.LEASE) - identity.projects)
    if others:
        allowed = ", ".join(f"projects/{name}" for name in sorted(identity.projects))
        raise PermissionRefused(
            f"this token is for {allowed}; the request is about projects/{others[0][:100]}",
            reason="OTHER_PROJECT",
        )


def _projects(found: Iterable[str], *, pods: bool = True) -> set[str]:
    """The projects that names among these texts begin with."""
    named = [
        text for text in found if text.startswith(_START) and (pods or not _POD.fullmatch(text))
    ]
    return {text.removeprefix(_START).partition("/")[0] for text in named}


def texts(message: Message) -> list[str]:
    """The strings in a message, and the default project for an unset `parent`. A Problem is text
    for people."""
    found: list[str] = []
    if "parent" in message.DESCRIPTOR.fields_by_name and not message.parent:  # type: ignore[attr-defined]
        found.append(f"{_START}{DEFAULT_PROJECT}")
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            found += value if field.is_repeated else [value]
        elif field.type == field.TYPE_MESSAGE:
            parts = value if field.is_repeated else [value]
            if field.is_repeated and hasattr(value, "items"):  # a map; a ListValue has items, too
                parts = itertools.chain.from_iterable(value.items())
            for part in parts:
                if isinstance(part, str):
                    found.append(part)
                elif isinstance(part, Message) and part.DESCRIPTOR.name != "Problem":
                    found += texts(part)
    return found
