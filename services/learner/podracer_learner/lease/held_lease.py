"""A held lease, with the thread that renews it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import DeadlineExpired, Fenced, PodracerError, Unavailable
from podracer_core.storage.object_store import ObjectStore
from podracer_learner.lease.control import LeaseControl, OrderCall
from podracer_learner.lease.guard import LeaseGuard
from podracer_platform.messages.sections import seconds_from_duration
from podracer_platform.rpc.backoff import Backoff
from podracer_platform.rpc.bounds import page

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_SOONEST_S = 1.0
_LONGEST_TERM_S = 86_400.0
_RETRY_S = (0.1, 1.0)
_AWAY_S = (0.5, 10.0)
_AT_ONCE = 1000  # evaluations

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
            self._thread.join(_TIMEOUT_S)

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
        retries = Backoff(*_RETRY_S)
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
        retries = Backoff(*_AWAY_S)
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
            sent, _ = page(unsent, _AT_ONCE, lambda each: each, lambda each: each.evaluation_id)
        request.evaluations.extend(sent)
        sent_at = self._guard.now()
        try:
            response = self._control.renew(request, min(_TIMEOUT_S, self._term_s / 2))
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
