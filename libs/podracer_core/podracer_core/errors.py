"""Every error that Podracer raises on purpose.

    PodracerError                 reason, message, what was wrong
    ├── InvalidInput              a value that can never be right           -> INVALID_ARGUMENT
    ├── PreconditionFailed        valid, but not in the current state       -> FAILED_PRECONDITION
    │   └── Fenced                the lease is no longer yours              -> ABORTED
    ├── NotFound                                                            -> NOT_FOUND
    ├── AlreadyExists                                                       -> ALREADY_EXISTS
    ├── Unauthenticated           no token, or an unknown one               -> UNAUTHENTICATED
    ├── PermissionRefused         a known token that may not do this        -> PERMISSION_DENIED
    ├── Exhausted                 a quota, a queue or a session limit       -> RESOURCE_EXHAUSTED
    ├── Unavailable               try again later                           -> UNAVAILABLE
    ├── DeadlineExpired           a wait that had a limit                   -> DEADLINE_EXCEEDED
    │   └── TimeUp                the time for training or evaluation is over
    ├── DataCorrupted             a stored object fails its checksum        -> DATA_LOSS
    └── UserCodeFailed            the user's environment raised             -> FAILED_PRECONDITION

The rpc package turns each into a `google.rpc.Status` and back, so that a caller sees the same class
on both sides of a wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FieldViolation:
    """One bad field of an input: `field` is its path (`search.space.gamma`), `message` what would
    be right."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


MOST_LETTERS = 4000
"""Of a text of user code in a message; the protos allow four bytes a letter."""


def plain(text: str) -> str:
    """The text in characters that messages and databases take: a NUL and half a surrogate pair
    become escapes."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


class PodracerError(Exception):
    """Base of all deliberate errors; `reason` is UPPER_SNAKE and stable, `metadata` names the
    offending values."""

    reason = "INTERNAL"

    def __init__(self, message: str, *, reason: str | None = None, **metadata: object) -> None:
        message = plain(message)
        super().__init__(message)
        self.message = message
        self.reason = reason or type(self).reason
        self.metadata = {key: plain(str(value)) for key, value in metadata.items()}


class InvalidInput(PodracerError):
    """A value that can never be right; `violations` names each bad field."""

    reason = "INVALID_INPUT"

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        violations: Sequence[FieldViolation] = (),
        reason: str | None = None,
        **metadata: object,
    ) -> None:
        """`field` replaces `violations` if it is the only bad one; `message` then says what would
        be right."""
        super().__init__(message, reason=reason, **metadata)
        self.violations = (FieldViolation(field, message),) if field else tuple(violations)

    @classmethod
    def of(cls, field: str, problem: str, reason: str | None = None) -> InvalidInput:
        """An error of one bad field, with whose name the message begins."""
        return cls(
            f"{field}: {problem}", violations=[FieldViolation(field, problem)], reason=reason
        )


class PreconditionFailed(PodracerError):
    """The request is valid, but not in the current state."""

    reason = "PRECONDITION_FAILED"


class Fenced(PreconditionFailed):
    """The lease has expired, or a newer one holds the work; its holder must stop writing."""

    reason = "FENCED"


class NotFound(PodracerError):
    """The named thing does not exist."""

    reason = "NOT_FOUND"


class AlreadyExists(PodracerError):
    """The name is taken."""

    reason = "ALREADY_EXISTS"


class Unauthenticated(PodracerError):
    """The call has no token, or an unknown one."""

    reason = "UNAUTHENTICATED"


class PermissionRefused(PodracerError):
    """The token is known but its role may not do this."""

    reason = "PERMISSION_REFUSED"


class Exhausted(PodracerError):
    """A quota, a queue or a session limit is used up."""

    reason = "EXHAUSTED"


class Unavailable(PodracerError):
    """The server cannot answer now; the same call may succeed later."""

    reason = "UNAVAILABLE"


class DeadlineExpired(PodracerError):
    """A wait reached its limit."""

    reason = "DEADLINE_EXPIRED"


class TimeUp(DeadlineExpired):
    """The time for training or evaluation is over, or its user has ended it: what is not finished
    is left out."""

    reason = "TIME_UP"


class DataCorrupted(PodracerError):
    """A stored object is truncated, altered or not what its manifest says."""

    reason = "DATA_CORRUPTED"


_NOTED_LINES = 30


class UserCodeFailed(PodracerError):
    """The user's own code raised; `user_traceback` is the traceback it printed."""

    reason = "USER_CODE_FAILED"

    def __init__(
        self,
        message: str,
        *,
        user_traceback: str = "",
        reason: str | None = None,
        **metadata: object,
    ) -> None:
        super().__init__(message, reason=reason, **metadata)
        self.user_traceback = user_traceback = plain(user_traceback)
        if user_traceback:  # for those who see this error only as Python prints it
            self.add_note("\n".join(user_traceback.rstrip().splitlines()[-_NOTED_LINES:]))
