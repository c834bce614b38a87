"""One project does not see another: what a request names has to be of the projects that its token is for.

All resource names begin with their project, so one look at a request's strings, in the server's guard, covers every
method, also those that are written tomorrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import Message

from podracer_core.errors import PermissionRefused
from podracer_core.rpc.auth import Identity

__all__ = ["DEFAULT_PROJECT", "check_projects"]

DEFAULT_PROJECT = "default"
"""Of a request whose `parent` is unset."""

_NAME = re.compile(r"projects/([^/]*)(?:/.*)?", re.DOTALL)


def check_projects(identity: Identity, request: Any) -> None:
    """Raises PermissionRefused (OTHER_PROJECT) where `request` is about a project that the caller has no token for."""
    if identity.projects is None or not isinstance(request, Message):
        return
    others = sorted(set(_projects(request)) - identity.projects)
    if others:
        allowed = ", ".join(f"projects/{name}" for name in sorted(identity.projects))
        raise PermissionRefused(
            f"this token is for {allowed}; the request is about projects/{others[0][:100]}", reason="OTHER_PROJECT"
        )


def _projects(value: Any) -> Iterator[str]:
    """Of every string in a message, or in the value of a field, that is the name of a project or begins with one."""
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
