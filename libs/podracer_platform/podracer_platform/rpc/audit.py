"""The audit log: a JSON line for each act of a client or an operator, done or refused, without what
was sent."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message

from podracer_core.errors import InvalidInput, PermissionRefused, PodracerError
from podracer_platform.rpc.auth import Identity, access_of
from podracer_platform.rpc.status import code_of
from podracer_platform.rpc.tokens import Role

logger = logging.getLogger("podracer.audit")
Seen = TypeVar("Seen")
_seen: ContextVar[list[Message] | None] = ContextVar("podracer_seen", default=None)


def write_audit_log(path: Path | None) -> None:
    """Append the lines to a file, or write them to stderr. Raises InvalidInput if the file cannot
    be written."""
    try:
        handler = (
            logging.StreamHandler(sys.stderr)
            if path is None
            else WatchedFileHandler(path, encoding="utf-8")
        )
    except OSError as error:
        raise InvalidInput(
            f"PODRACER_AUDIT_LOG: cannot write {path}: {error.strerror}", path=path
        ) from error
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


@contextmanager
def audited(method: str, identity: Identity, peer: str) -> Iterator[None]:
    """A block that leaves a line at its end if `method` is an act. `note` tells what it is
    about."""
    if not access_of(method).act:
        yield
        return
    seen: list[Message] = []
    _seen.set(seen)
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        _write(method, identity, peer, error, seen)


def note(message: Seen) -> Seen:
    """Note a request or an answer of the call, and return it. Only the first one and the last one
    count."""
    if (seen := _seen.get()) is not None and isinstance(message, Message):
        seen[1 if seen else 0 :] = [message]
    return message


def audit_refusal(method: str, refusal: Exception, peer: str) -> None:
    """Leave a line of an act that the caller's role may not do."""
    if access_of(method).act and isinstance(refusal, PermissionRefused):
        role, token, name = (refusal.metadata[key] for key in ("role", "token", "name"))
        _write(method, Identity(Role(role), token=token, name=name), peer, refusal, [])


def _write(
    method: str, caller: Identity, peer: str, error: BaseException | None, seen: list[Message]
) -> None:
    outcome = "OK" if error is None else "INTERNAL" if isinstance(error, Exception) else "CANCELLED"
    if isinstance(error, PodracerError):
        outcome = code_of(error).name
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "logger": logger.name,
        **{"role": caller.role, "token": caller.token, "name": caller.name, "peer": peer},
        **{"method": method.removeprefix("/podracer."), "resource": _resource(seen)},
        **{"outcome": outcome, "reason": getattr(error, "reason", "")},
    }
    logger.info(json.dumps(entry))


def _resource(seen: list[Message]) -> str:
    """The name of what a call is about, in its request or, if it makes something, in its answer;
    else the parent."""
    made = [
        value for each in seen[1:] for _, value in each.ListFields() if isinstance(value, Message)
    ]
    messages = [*(getattr(each, "header", each) for each in seen[:1]), *made]
    found = (
        getattr(each, field, "")
        for field in ("name", "job", "leaderboard", "parent")
        for each in messages
    )
    return next((name[:200] for name in found if name and isinstance(name, str)), "")
