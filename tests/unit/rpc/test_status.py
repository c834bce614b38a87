"""Errors keep their class, reason and details over the wire format."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2

from podracer_core import errors
from podracer_core.errors import FieldViolation, InvalidInput, PodracerError, UserCodeFailed
from podracer_platform.rpc import (
    DOMAIN,
    code_of,
    from_rpc_error,
    from_status,
    to_grpc_status,
    to_status,
)

PLAIN = [
    (errors.PodracerError, grpc.StatusCode.INTERNAL),
    (errors.InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.PreconditionFailed, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Fenced, grpc.StatusCode.ABORTED),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.PermissionRefused, grpc.StatusCode.PERMISSION_DENIED),
    (errors.Exhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.DeadlineExpired, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.DataCorrupted, grpc.StatusCode.DATA_LOSS),
    (errors.UserCodeFailed, grpc.StatusCode.FAILED_PRECONDITION),
]


def aio_error(
    code: grpc.StatusCode, details: str = "", rich: bytes | None = None
) -> grpc.aio.AioRpcError:
    trailers = (
        grpc.aio.Metadata()
        if rich is None
        else grpc.aio.Metadata(("grpc-status-details-bin", rich))
    )
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details)


@pytest.mark.parametrize(("cls", "code"), PLAIN)
def test_every_class_comes_back_as_itself(cls, code):
    error = cls("no such thing", reason="SPECIAL_CASE", job="projects/p/jobs/j", count=3)
    assert code_of(error) is code
    back = from_status(to_status(error))
    assert type(back) is cls
    assert (back.message, back.reason) == ("no such thing", "SPECIAL_CASE")
    assert back.metadata == {"job": "projects/p/jobs/j", "count": "3"}


def test_every_error_class_is_listed():
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, PodracerError)
    }
    assert defined == {cls for cls, _ in PLAIN} | {errors.TimeUp}  # which crosses no wire


def test_status_details_are_googles():
    status = to_status(
        InvalidInput("bad", violations=[FieldViolation("search.space", "is empty")], job="j")
    )
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == (
        "INVALID_INPUT",
        DOMAIN,
        {"job": "j"},
    )
    assert status.details[1].Unpack(request)
    assert [(violation.field, violation.description) for violation in request.field_violations] == [
        ("search.space", "is empty")
    ]


def test_retries_know_how_long_to_wait_and_that_it_does_not_help():
    busy = errors.Exhausted("too many calls", retry_after_s=1.5)
    retry = error_details_pb2.RetryInfo()
    assert to_status(busy).details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1500
    assert dict(to_grpc_status(busy).trailing_metadata)["grpc-retry-pushback-ms"] == "1500"
    used_up = errors.Exhausted("the quota is used up")
    assert dict(to_grpc_status(used_up).trailing_metadata)["grpc-retry-pushback-ms"] == "-1"
    assert "grpc-retry-pushback-ms" not in dict(
        to_grpc_status(errors.Unavailable("later")).trailing_metadata
    )


def test_violations_and_traceback_come_back():
    violations = (FieldViolation("name", "is empty"), FieldViolation("seed", "is negative"))
    invalid = from_status(to_status(InvalidInput("two things", violations=violations)))
    assert isinstance(invalid, InvalidInput)
    assert invalid.violations == violations
    failed = from_status(
        to_status(UserCodeFailed("reset raised", user_traceback="Traceback…\nZeroDivisionError"))
    )
    assert isinstance(failed, UserCodeFailed)
    assert failed.user_traceback == "Traceback…\nZeroDivisionError"


def test_subclass_travels_as_its_base():
    class LeaseLost(errors.Fenced):
        reason = "LEASE_LOST"

    back = from_status(to_status(LeaseLost("gone")))
    assert (type(back), back.reason) == (errors.Fenced, "LEASE_LOST")


def test_huge_errors_fit_into_trailers():
    violations = [FieldViolation(f"field{i}", "é" * 300) for i in range(1000)]
    huge = [
        InvalidInput("é" * 100_000, violations=violations, value="é" * 100_000),
        UserCodeFailed(
            "m" * 100_000, user_traceback="first line" + "é" * 100_000 + "the last line"
        ),
    ]
    for error in huge:
        trailers = to_grpc_status(error).trailing_metadata
        assert sum(len(key) + len(value) for key, value in trailers) < 6000
    back = from_status(to_status(huge[1]))
    assert isinstance(back, UserCodeFailed)
    assert back.user_traceback.endswith("the last line")


@pytest.mark.parametrize(
    ("code", "cls", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable, "UNAVAILABLE"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExpired, "DEADLINE_EXPIRED"),
        (grpc.StatusCode.CANCELLED, errors.Unavailable, "CANCELLED"),
        (grpc.StatusCode.ABORTED, errors.PreconditionFailed, "ABORTED"),
        (grpc.StatusCode.OUT_OF_RANGE, errors.InvalidInput, "OUT_OF_RANGE"),
        (grpc.StatusCode.UNIMPLEMENTED, errors.PodracerError, "UNIMPLEMENTED"),
        (grpc.StatusCode.UNKNOWN, errors.PodracerError, "UNKNOWN"),
        (grpc.StatusCode.INTERNAL, errors.PodracerError, "INTERNAL"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Exhausted, "EXHAUSTED"),
    ],
)
def test_codes_without_our_details(code, cls, reason):
    error = from_rpc_error(
        aio_error(code, "connection refused"), peer="127.0.0.1:1", method="/a.B/C"
    )
    assert (type(error), error.reason) == (cls, reason)
    assert error.message == "/a.B/C at 127.0.0.1:1: connection refused"


def test_malformed_details_fall_back_to_the_code():
    error = from_rpc_error(aio_error(grpc.StatusCode.NOT_FOUND, "no job", rich=b"\xff\xff\xff"))
    assert (type(error), error.message) == (errors.NotFound, "no job")


def test_error_without_a_status():
    assert type(from_rpc_error(grpc.RpcError())) is PodracerError
