"""The bounds of requests: those of the protos (`buf.validate`), checked before a handler sees
anything.

A renewal of usual size costs 0.04 ms, a step of a session or a request to act 0.005 ms. Tensors by
name, which would cost 0.05 ms, are left to their decoder (`IGNORE_ALWAYS` in the protos)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from contextlib import suppress
from typing import Any, TypeVar

from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from podracer_core.errors import FieldViolation, InvalidInput

Row = TypeVar("Row")

PAGE_BYTES = 1024 * 1024
"""A page of a listing ends early rather than grow larger."""

_OURS = "podracer."
_SHOWN = 100


def prepare(services: Iterable[str]) -> None:
    """Compile the bounds of all requests to `services`, so that no call waits for it."""
    for service in services:
        with suppress(KeyError):  # services without a proto have no bounds
            for method in descriptor_pool.Default().FindServiceByName(service).methods:
                check_bounds(GetMessageClass(method.input_type)())


def check_bounds(request: Any) -> None:
    """Raises InvalidInput (OUT_OF_BOUNDS) with the first field of `request` that its proto does not
    allow."""
    if not isinstance(request, Message) or not request.DESCRIPTOR.full_name.startswith(_OURS):
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
