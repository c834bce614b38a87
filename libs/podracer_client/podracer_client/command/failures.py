"""What a user sees of a deliberate error."""

from __future__ import annotations

from podracer_core.errors import (
    AlreadyExists,
    Fenced,
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    PreconditionFailed,
    Unauthenticated,
    Unavailable,
    UserCodeFailed,
)

FAILED = 1
BAD_INPUT = 2

_BAD_INPUT = (InvalidInput, NotFound, AlreadyExists, PreconditionFailed, Unauthenticated, PermissionRefused)


def exit_code(error: PodracerError) -> int:
    """2 for what the user can put right in the command or its files, 1 for the rest."""
    return BAD_INPUT if isinstance(error, _BAD_INPUT) and not isinstance(error, Fenced) else FAILED


def failure_text(error: PodracerError) -> str:
    """The message, a line for each bad field that it does not name already, and the user's own traceback."""
    lines = [f"podracer: {error.message}"]
    if isinstance(error, InvalidInput):
        lines += [f"  {violation}" for violation in error.violations if violation.message not in error.message]
    if isinstance(error, Unavailable) and error.reason == Unavailable.reason:
        lines.append("  is it running (`podracer up` starts one on this machine)? Does it speak TLS (--tls)?")
    if isinstance(error, UserCodeFailed) and error.user_traceback:
        lines += ["", error.user_traceback.rstrip()]
    return "\n".join(lines) + "\n"
