"""A lease of work: the learner's calls to the orchestrator, under the pod's token and under a
lease's; the thread that renews the lease; and self-fencing: a learner writes nothing unless it is
sure of its lease."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2, cohort_pb2
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
from podracer_core.storage import CHUNK_BYTES, ObjectInfo, ObjectStore, StoreAccess, StoreKeys
from podracer_learner.background import pause
from podracer_platform.messages import seconds_from_duration
from podracer_platform.rpc import Backoff, bearer, page, translated_errors
from podracer_platform.service import own_build

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_STORE_AWAY_S = (0.2, 5.0)
_MARGIN_FRACTION = 0.1
_MARGIN_S = 1.0


class LeaseGuard:
    """Knows until when the lease is held: one term from when the last successful renewal was
    *sent*.

    It keeps a margin of a tenth of the term (1 s at most), as a write takes time. The clock is
    monotonic and also runs while the process is stopped. An expired lease is never revived by a
    later renewal. Thread-safe."""

    def __init__(self, lease: str, fence: int, clock: Callable[[], float] = time.monotonic) -> None:
        """The lease is not held before the first `extend`."""
        self.lease, self.fence, self._clock = lease, fence, clock
        self._lock = threading.Lock()
        self._deadline: float | None = None
        self._reason = "it has not been renewed yet"

    def now(self) -> float:
        """The clock's time, to hand to `extend`."""
        return self._clock()

    def extend(self, sent_at: float, term_s: float) -> None:
        """A renewal that was sent at `sent_at` has been granted. Raises Fenced if it came too
        late."""
        with self._lock:
            if self._deadline is not None:
                self._check()
            granted = sent_at + term_s - min(_MARGIN_S, _MARGIN_FRACTION * term_s)
            self._deadline = max(granted, self._deadline or granted)
            self._check()

    def revoke(self, reason: str) -> None:
        """The orchestrator has ended the lease."""
        with self._lock:
            self._deadline, self._reason = float("-inf"), reason

    def check(self) -> None:
        """Raises Fenced unless the lease is held now. Call it before every write."""
        with self._lock:
            self._check()

    @property
    def remaining_s(self) -> float:
        """Seconds until the lease expires without a renewal; 0 if it is not held."""
        with self._lock:
            return 0.0 if self._deadline is None else max(self._deadline - self._clock(), 0.0)

    def _check(self) -> None:
        if self._deadline is not None and self._clock() < self._deadline:
            return
        if self._deadline is not None and self._deadline != float("-inf"):
            self._deadline, self._reason = float("-inf"), "its term ended without a renewal"
        raise Fenced(
            f"this pod does not hold {self.lease}: {self._reason}",
            lease=self.lease,
            fence=self.fence,
        )


class FencedStore(ObjectStore):
    """An object store that writes only while the lease is held, and waits for an unavailable store
    on reads."""

    def __init__(
        self, store: ObjectStore, guard: LeaseGuard, check: Callable[[], None], patience_s: float
    ) -> None:
        """Reads are retried for `patience_s`; `check` is called meanwhile and raises to cancel."""
        self._store, self._guard, self._check, self._patience_s = store, guard, check, patience_s
        self.url = store.url

    def put(self, key: str, data: bytes | Path) -> None:
        self._guard.check()
        self._store.put(key, data)

    def read_chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        def begin() -> tuple[Iterator[bytes], bytes | None]:
            chunks = self._store.read_chunks(key, chunk_bytes)
            return chunks, next(chunks, None)

        chunks, first = self._patiently(begin)
        if first is not None:
            yield first
        yield from chunks

    def stat(self, key: str) -> ObjectInfo:
        return self._patiently(lambda: self._store.stat(key))

    def _patiently(self, read: Callable[[], Answer]) -> Answer:
        waits, deadline = Backoff(*_STORE_AWAY_S), time.monotonic() + self._patience_s
        while True:
            try:
                return read()
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise
                logger.info("waiting for the object store: %s", error.message)
            pause(next(waits), self._check)


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


_RENEWAL_TIMEOUT_S = 5.0
_SOONEST_S = 1.0
_LONGEST_TERM_S = 86_400.0
_RENEWAL_RETRY_S = (0.1, 1.0)
_ORDERS_AWAY_S = (0.5, 10.0)
_EVALUATIONS_AT_ONCE = 1000  # evaluations

DRAINING = cohort_pb2.Problem(
    reason="DRAINING", message="the pod was told to stop, or to do other work"
)

ROUND_OVER = cohort_pb2.Problem(reason="ROUND_OVER", message="the lead has ended the round")


class Renewal:
    """Renews every third of a term, or sooner if evaluations wait, with the last reported progress.

    A refusal revokes the guard; without answers it expires. Orders also arrive between renewals.
    """

    def __init__(self, control: LeaseControl, guard: LeaseGuard, term_s: float) -> None:
        self._control, self._guard, self._term_s = control, guard, _bounded(term_s)
        self._lock = threading.Lock()
        self._progress = pod_service_pb2.RenewLeaseRequest()
        self._candidates: dict[str, agent_pb2.Evaluation] = {}  # by id
        self._looks: dict[str, agent_pb2.Evaluation] = {}  # by agent: the newest says enough
        self._action = pod_service_pb2.LEASE_ACTION_CONTINUE
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-renewal", daemon=True)
        self._orders: OrderCall | None = None
        self.admission_score: float | None = None

    @property
    def action(self) -> pod_service_pb2.LeaseAction.ValueType:
        """The orchestrator's current order."""
        return self._action

    @property
    def calls_back(self) -> bool:
        """Whether the orchestrator recalls the lease, to stop this pod or to have it work for
        another job."""
        return self._action in (
            pod_service_pb2.LEASE_ACTION_DRAIN,
            pod_service_pb2.LEASE_ACTION_RELEASE,
        )

    def start(self) -> None:
        """Renew once, which makes the guard valid, and start the thread. Raises Fenced, or
        Unavailable if the orchestrator does not answer."""
        self._renew()
        self._thread.start()
        threading.Thread(target=self._listen, name="lease-orders", daemon=True).start()

    def stop(self) -> None:
        """Stop renewing. Undelivered evaluations stay in `undelivered`."""
        self._stopped.set()
        self._wake.set()
        if self._orders is not None:
            self._orders.cancel()
        if self._thread.is_alive():
            self._thread.join(_RENEWAL_TIMEOUT_S)

    def report(self, progress: pod_service_pb2.RenewLeaseRequest) -> None:
        """Send this progress with the next renewal; the first report is sent soon."""
        with self._lock:
            first, self._progress = not self._progress.members, progress
        if first:
            self._wake.set()

    def add_evaluations(self, evaluations: Iterable[agent_pb2.Evaluation]) -> None:
        """Deliver these with the next renewal; of an agent's looks only the newest."""
        with self._lock:
            for evaluation in evaluations:
                if evaluation.purpose == agent_pb2.EVALUATION_PURPOSE_PROGRESS:
                    self._looks[evaluation.agent] = evaluation
                else:
                    self._candidates[evaluation.evaluation_id] = evaluation
        self._wake.set()

    def undelivered(self) -> list[agent_pb2.Evaluation]:
        """Evaluations without a confirmed delivery."""
        with self._lock:
            return [*self._candidates.values(), *self._looks.values()]

    def _run(self) -> None:
        retries = Backoff(*_RENEWAL_RETRY_S)
        wait_s = self._term_s / 3
        while not self._stopped.is_set():
            soonest = min(_SOONEST_S, self._term_s / 6)
            self._stopped.wait(min(soonest, wait_s))
            self._wake.wait(max(wait_s - soonest, 0.0))
            self._wake.clear()
            if self._stopped.is_set():
                return
            try:
                self._renew()
            except Fenced as error:
                logger.warning("%s", error.message)
                return
            except (Unavailable, DeadlineExpired) as error:
                logger.info("no answer to a lease renewal, retrying: %s", error.message)
                wait_s = next(retries)
            except PodracerError as error:
                self._guard.revoke(error.message)
                logger.warning("the orchestrator refused a lease renewal: %s", error.message)
                return
            else:
                retries.reset()
                wait_s = self._term_s / 3

    def _listen(self) -> None:
        """Receive orders at once. If that fails, renewals bring them."""
        retries = Backoff(*_ORDERS_AWAY_S)
        while not self._stopped.is_set():
            try:
                self._orders = self._control.watch()
                if self._stopped.is_set():
                    self._orders.cancel()
                for response in self._orders:
                    self._action = response.action or pod_service_pb2.LEASE_ACTION_CONTINUE
                    retries.reset()
            except (Unavailable, DeadlineExpired) as error:
                logger.debug("the stream of orders failed, retrying: %s", error.message)
            except PodracerError as error:
                logger.debug("receiving orders with renewals only: %s", error.message)
                return
            self._stopped.wait(next(retries))

    def _renew(self) -> None:
        with self._lock:
            request = pod_service_pb2.RenewLeaseRequest()
            request.CopyFrom(self._progress)
            unsent = [*self._candidates.values(), *self._looks.values()]
            sent, _ = page(
                unsent, _EVALUATIONS_AT_ONCE, lambda each: each, lambda each: each.evaluation_id
            )
        request.evaluations.extend(sent)
        sent_at = self._guard.now()
        try:
            response = self._control.renew(request, min(_RENEWAL_TIMEOUT_S, self._term_s / 2))
        except Fenced as error:
            self._guard.revoke(error.message)
            raise
        if response.HasField("term"):
            self._term_s = _bounded(seconds_from_duration(response.term))
        self._guard.extend(sent_at, self._term_s)
        self._action = response.action or pod_service_pb2.LEASE_ACTION_CONTINUE
        self.admission_score = (
            response.admission_score if response.HasField("admission_score") else None
        )
        delivered = {evaluation.evaluation_id for evaluation in sent}
        with self._lock:
            for waiting in (self._candidates, self._looks):
                for key in [
                    key
                    for key, evaluation in waiting.items()
                    if evaluation.evaluation_id in delivered
                ]:
                    del waiting[key]
            if self._candidates or self._looks:
                self._wake.set()


def _bounded(term_s: float) -> float:
    """A term for which Python can wait."""
    return min(max(term_s, 0.0), _LONGEST_TERM_S)


class Interrupted(PodracerError):
    """The learner was told to stop while it waited."""

    reason = "DRAINING"


@dataclass(frozen=True, slots=True)
class HeldLease:
    """`store`: the object store, which writes only while the lease is held. `received_at`: on the
    monotonic clock; `used_before`: this process's processor seconds then."""

    lease: pod_service_pb2.Lease
    received_at: float
    used_before: float
    guard: LeaseGuard
    control: LeaseControl
    renewal: Renewal
    store: ObjectStore
