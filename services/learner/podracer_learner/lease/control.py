"""The learner's calls to the orchestrator, under the pod's token and under a lease's."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf import duration_pb2

from podracer.common.v1 import cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2, pod_service_pb2_grpc
from podracer_core.errors import (
    DeadlineExpired,
    Fenced,
    InvalidInput,
    PermissionRefused,
    PodracerError,
    PreconditionFailed,
    Unauthenticated,
    Unavailable,
)
from podracer_core.storage.object_store import StoreAccess, StoreKeys
from podracer_learner.lease.guard import LeaseGuard
from podracer_platform.messages.sections import seconds_from_duration
from podracer_platform.rpc.auth import bearer
from podracer_platform.rpc.backoff import Backoff
from podracer_platform.rpc.status import translated_errors
from podracer_platform.service.build import own_build

logger = logging.getLogger(__name__)

CommitCall: TypeAlias = "grpc.Future[pod_service_pb2.CommitCheckpointResponse]"
OrderCall: TypeAlias = "grpc._CallIterator[pod_service_pb2.WatchLeaseResponse]"
LeaseRequest: TypeAlias = (
    pod_service_pb2.RenewLeaseRequest
    | pod_service_pb2.WatchLeaseRequest
    | pod_service_pb2.CommitCheckpointRequest
    | pod_service_pb2.CompleteWorkRequest
    | pod_service_pb2.ReleaseLeaseRequest
)
Response = TypeVar("Response")

_LONG_POLL_S = 20.0
_LONG_POLL_SLACK_S = 10.0
_WRITE_TIMEOUT_S = 10.0
_RETRY_S = (0.05, 1.0)
_AWAY_S = (0.1, 2.0)
_AT_ONCE_S = 1.0


def lease_work(
    stub: pod_service_pb2_grpc.PodServiceStub,
    request: pod_service_pb2.LeaseWorkRequest,
    stop: threading.Event,
) -> pod_service_pb2.Lease | None:
    """Wait for work, however long it takes and through any outage; None once `stop` is set.

    The same request id is repeated until an answer has come, so that no lease is granted twice.
    Raises what asking again would not mend: a wrong token, another build."""
    away = Backoff(*_AWAY_S)
    request.request_id = secrets.token_hex(16)
    request.wait.CopyFrom(duration_pb2.Duration(seconds=int(_LONG_POLL_S)))
    while not stop.is_set():
        asked_at = time.monotonic()
        try:
            response = _interruptible(stub, request, stop)
        except (InvalidInput, PermissionRefused, PreconditionFailed, Unauthenticated):
            raise  # asking again would not help
        except PodracerError as error:
            logger.info("cannot ask the orchestrator for work, retrying: %s", error.message)
            stop.wait(next(away))
            continue
        if response is None:
            return None
        if response.HasField("lease"):
            return response.lease
        if time.monotonic() - asked_at < _AT_ONCE_S:  # it should have waited for work
            stop.wait(next(away))
        else:
            away.reset()
        request.request_id = secrets.token_hex(16)
    return None


def _interruptible(
    stub: pod_service_pb2_grpc.PodServiceStub,
    request: pod_service_pb2.LeaseWorkRequest,
    stop: threading.Event,
) -> pod_service_pb2.LeaseWorkResponse | None:
    """The answer, or None if `stop` was set first."""
    done = threading.Event()
    with translated_errors(method="LeaseWork"):
        call = stub.LeaseWork.future(request, timeout=_LONG_POLL_S + _LONG_POLL_SLACK_S)
        call.add_done_callback(lambda _: done.set())
        while not done.wait(0.05):
            if stop.is_set():
                call.cancel()
                return None
        response: pod_service_pb2.LeaseWorkResponse = call.result()
        return response


class LeaseControl:
    """The calls of one lease. Required calls are repeated while the lease is held; each is
    idempotent by contract."""

    def __init__(
        self,
        stub: pod_service_pb2_grpc.PodServiceStub,
        lease: pod_service_pb2.Lease,
        guard: LeaseGuard,
    ) -> None:
        self._stub, self._guard = stub, guard
        self._name, self._fence = lease.name, lease.fence
        self._metadata = bearer(lease.token)

    def renew(
        self, request: pod_service_pb2.RenewLeaseRequest, timeout_s: float
    ) -> pod_service_pb2.RenewLeaseResponse:
        """Renew the lease once; the caller repeats it."""
        response: pod_service_pb2.RenewLeaseResponse = self._send(
            self._stub.RenewLease, request, timeout_s
        )
        return response

    def watch(self) -> OrderCall:
        """The orders, now and at each change, until the lease ends or the call is cancelled."""
        return self._send(self._stub.WatchLease, pod_service_pb2.WatchLeaseRequest(), None)

    def store_access(self, method: str, key: str) -> StoreAccess:
        """Keys for the object store, or the URL of an object; the caller repeats it."""
        request = pod_service_pb2.GetStoreAccessRequest(lease=self._name, fence=self._fence)
        if key:
            setattr(request, "write" if method == "PUT" else "read", key)
        response: pod_service_pb2.GetStoreAccessResponse = self._stub.GetStoreAccess(
            request, metadata=self._metadata, timeout=_WRITE_TIMEOUT_S
        )
        keys = response.keys
        return StoreAccess(
            seconds_from_duration(response.validity),
            StoreKeys(keys.access_key, keys.secret_key, keys.session_token)
            if response.HasField("keys")
            else None,
            response.url,
        )

    def commit(self, members: Sequence[pod_service_pb2.MemberCheckpoint]) -> None:
        """Commit checkpoints. Raises Fenced if the lease is not held."""
        request = pod_service_pb2.CommitCheckpointRequest(members=members)
        self._insist(self._stub.CommitCheckpoint, request)

    def begin_commit(self, members: Sequence[pod_service_pb2.MemberCheckpoint]) -> CommitCall:
        """Send `commit` once, and do not wait for the answer."""
        self._guard.check()
        request = pod_service_pb2.CommitCheckpointRequest(members=members)
        return self._send(self._stub.CommitCheckpoint.future, request, _WRITE_TIMEOUT_S)

    def complete(self, request: pod_service_pb2.CompleteWorkRequest) -> None:
        """End the work with its result. Raises Fenced if the lease is not held."""
        self._insist(self._stub.CompleteWork, request)

    def release(self, problem: cohort_pb2.Problem, timeout_s: float = 1.0) -> None:
        """Hand the work back, best effort: the lease would expire anyway."""
        request = pod_service_pb2.ReleaseLeaseRequest(reason=problem)
        try:
            self._guard.check()
            self._send(self._stub.ReleaseLease, request, timeout_s)
        except Fenced as error:
            logger.info("%s has already ended: %s", self._name, error.message)
        except PodracerError as error:
            logger.warning("cannot release %s: %s", self._name, error.message)
        self._guard.revoke("it was released")

    def _send(
        self, method: Callable[..., Response], request: LeaseRequest, timeout_s: float | None
    ) -> Response:
        request.lease, request.fence = self._name, self._fence
        return method(request, metadata=self._metadata, timeout=timeout_s)

    def _insist(self, method: Callable[..., object], request: LeaseRequest) -> None:
        waits = Backoff(*_RETRY_S)
        while True:
            self._guard.check()
            timeout_s = min(_WRITE_TIMEOUT_S, max(self._guard.remaining_s, 0.1))
            try:
                self._send(method, request, timeout_s)
            except (Unavailable, DeadlineExpired) as error:
                text = "%s: no answer from the orchestrator, retrying: %s"
                logger.info(text, self._name, error.message)
                time.sleep(next(waits))
            else:
                return


def work_request(
    pod: str, address: str, capabilities: pod_service_pb2.PodCapabilities
) -> pod_service_pb2.LeaseWorkRequest:
    """The common part of every LeaseWork of this process; its instance id distinguishes it from a
    former process."""
    return pod_service_pb2.LeaseWorkRequest(
        pod=pod,
        instance_id=secrets.token_hex(16),
        build=own_build(),
        address=address,
        capabilities=capabilities,
    )
