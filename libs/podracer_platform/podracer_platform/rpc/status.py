"""PodracerError <-> google.rpc.Status, so that a caller sees the same class on both sides of a
wire.

code          by class (the tree in podracer_core.errors)
ErrorInfo     reason, domain "podracer", metadata
BadRequest    the violations of InvalidInput
RetryInfo     how long to wait before the next attempt, if an Exhausted has `retry_after_s` in its
              metadata. gRPC's own retries follow it; without it there are none: a quota does not
              recover soon
DebugInfo     the user's traceback of UserCodeFailed; never one of Podracer's own
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from podracer_core.errors import (
    AlreadyExists,
    DataCorrupted,
    DeadlineExpired,
    Exhausted,
    Fenced,
    FieldViolation,
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    PreconditionFailed,
    Unauthenticated,
    Unavailable,
    UserCodeFailed,
)
from podracer_platform.rpc import limits

DOMAIN = "podracer"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
RETRY_AFTER = "retry_after_s"

_CODE_OF_CLASS: dict[type[PodracerError], grpc.StatusCode] = {
    PodracerError: grpc.StatusCode.INTERNAL,
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    PreconditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    Fenced: grpc.StatusCode.ABORTED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionRefused: grpc.StatusCode.PERMISSION_DENIED,
    Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlineExpired: grpc.StatusCode.DEADLINE_EXCEEDED,
    DataCorrupted: grpc.StatusCode.DATA_LOSS,
    UserCodeFailed: grpc.StatusCode.FAILED_PRECONDITION,
}

_CLASS_OF_CODE: dict[grpc.StatusCode, type[PodracerError]] = {
    **{code: cls for cls, code in _CODE_OF_CLASS.items() if cls is not UserCodeFailed},
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.OUT_OF_RANGE: InvalidInput,
}


def code_of(error: PodracerError) -> grpc.StatusCode:
    """The status code of an error; that of its nearest listed base class."""
    return next(_CODE_OF_CLASS[cls] for cls in type(error).__mro__ if cls in _CODE_OF_CLASS)


def to_status(error: PodracerError) -> status_pb2.Status:
    """The rich status of an error, cut to what fits into gRPC's trailers (limits.STATUS_…)."""
    status = status_pb2.Status(
        code=code_of(error).value[0], message=error.message[: limits.STATUS_MESSAGE_CHARACTERS]
    )
    cut = limits.STATUS_METADATA_CHARACTERS
    metadata = {key[:cut]: value[:cut] for key, value in error.metadata.items()}
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    )
    if isinstance(error, InvalidInput) and error.violations:
        status.details.add().Pack(_bad_request(error.violations))
    wait_s = _retry_after_s(error)
    if wait_s is not None:
        info = error_details_pb2.RetryInfo()
        info.retry_delay.FromMilliseconds(int(wait_s * 1000))
        status.details.add().Pack(info)
    if isinstance(error, UserCodeFailed):
        tail = error.user_traceback.encode()[-limits.STATUS_TRACEBACK_BYTES :].decode(
            errors="ignore"
        )
        status.details.add().Pack(error_details_pb2.DebugInfo(detail=tail))
    return status


def to_grpc_status(error: PodracerError) -> grpc.Status:
    """The form that `context.abort_with_status` takes."""
    status = rpc_status.to_status(to_status(error))
    if not isinstance(error, Exhausted):
        return status
    wait_s = _retry_after_s(error)
    pushback = (PUSHBACK_KEY, "-1" if wait_s is None else str(int(wait_s * 1000)))
    return _Status(status.code, status.details, (*status.trailing_metadata, pushback))


@dataclass(frozen=True, slots=True)
class _Status(grpc.Status):
    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def _retry_after_s(error: PodracerError) -> float | None:
    return float(error.metadata[RETRY_AFTER]) if RETRY_AFTER in error.metadata else None


def from_status(status: status_pb2.Status) -> PodracerError:
    """The inverse of `to_status`, as far as the status has the details."""
    code = next(
        (code for code in grpc.StatusCode if code.value[0] == status.code), grpc.StatusCode.UNKNOWN
    )
    return _error_from(code, status.message, status)


def from_rpc_error(error: grpc.RpcError, *, peer: str = "", method: str = "") -> PodracerError:
    """The PodracerError behind a failed call.

    An error of the server gets the same class; else gRPC's code decides: UNAVAILABLE ->
    Unavailable, CANCELLED -> Unavailable (reason CANCELLED), DEADLINE_EXCEEDED -> DeadlineExpired,
    UNKNOWN, UNIMPLEMENTED and INTERNAL -> PodracerError. `peer` and `method` name the call in the
    message of an error made on this side."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return PodracerError(f"the call failed without a status: {error!r}")
    code = error.code()
    details = error.details() or ""
    rich = _rich_status(error)
    if rich is not None and rich.code == code.value[0]:
        return _error_from(code, rich.message, rich)
    call = " ".join(part for part in (method, f"at {peer}" if peer else "") if part)
    return _error_from(
        code, f"{call}: {details or code.name}" if call else details or code.name, None
    )


@contextmanager
def translated_errors(*, peer: str = "", method: str = "") -> Iterator[None]:
    """Turn a grpc.RpcError raised inside into its PodracerError.

    Channels of this package do this themselves; use it for other channels and for
    `stub.Method.future(…).result()`."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error, peer=peer, method=method) from error


def _error_from(
    code: grpc.StatusCode, message: str, status: status_pb2.Status | None
) -> PodracerError:
    info = error_details_pb2.ErrorInfo()
    request = error_details_pb2.BadRequest()
    debug = error_details_pb2.DebugInfo()
    has_debug = False
    for detail in status.details if status is not None else ():
        with suppress(DecodeError):  # bytes that are not what they are said to be tell nothing
            detail.Unpack(info)
            detail.Unpack(request)
            has_debug = detail.Unpack(debug) or has_debug
    ours = info.domain == DOMAIN
    reason = info.reason if ours else _foreign_reason(code)
    cls = _CLASS_OF_CODE.get(code, PodracerError)
    if cls is Fenced and not ours:
        cls = PreconditionFailed  # some proxy's ABORTED says nothing about a lease
    if ours and code is grpc.StatusCode.FAILED_PRECONDITION and has_debug:
        error: PodracerError = UserCodeFailed(message, reason=reason, user_traceback=debug.detail)
    elif cls is InvalidInput:
        violations = [
            FieldViolation(violation.field, violation.description)
            for violation in request.field_violations
        ]
        error = InvalidInput(message, reason=reason, violations=violations)
    else:
        error = cls(message, reason=reason)
    error.metadata.update(info.metadata if ours else {})
    return error


def _foreign_reason(code: grpc.StatusCode) -> str | None:
    cls = _CLASS_OF_CODE.get(code)
    return (
        None if cls is not None and _CODE_OF_CLASS[cls] is code and cls is not Fenced else code.name
    )


def _bad_request(violations: tuple[FieldViolation, ...]) -> error_details_pb2.BadRequest:
    request = error_details_pb2.BadRequest()
    for violation in violations:
        request.field_violations.add(field=violation.field, description=violation.message)
        if request.ByteSize() > limits.STATUS_VIOLATIONS_BYTES:
            del request.field_violations[-1]
            break
    return request


def _rich_status(error: grpc.Call | grpc.aio.AioRpcError) -> status_pb2.Status | None:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                # not a status of ours; gRPC's own code and text still tell what happened
                return None
    return None
