"""The thread that renews a lease: what it delivers, and what it does without an answer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import Fenced, PermissionRefused, Unavailable
from podracer_learner.lease import LeaseGuard, Renewal


class FakeControl:
    """Answers with what `answer` gives, or raises it."""

    def __init__(self) -> None:
        self.requests: list[pod_service_pb2.RenewLeaseRequest] = []
        self.answers: list[Exception] = []
        self.response = pod_service_pb2.RenewLeaseResponse(
            term=duration_pb2.Duration(seconds=1, nanos=500_000_000)
        )
        self.came = threading.Event()
        self.calls: queue.SimpleQueue[FakeOrders] = queue.SimpleQueue()

    def renew(
        self, request: pod_service_pb2.RenewLeaseRequest, timeout_s: float
    ) -> pod_service_pb2.RenewLeaseResponse:
        self.requests.append(request)
        self.came.set()
        if self.answers:
            raise self.answers.pop(0)
        return self.response

    def watch(self) -> FakeOrders:
        call = FakeOrders()
        self.calls.put(call)
        return call


class FakeOrders:
    """The stream of a WatchLease."""

    def __init__(self) -> None:
        self.actions: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.ended = -1

    def __iter__(self) -> Iterator[pod_service_pb2.WatchLeaseResponse]:
        for action in iter(self.actions.get, self.ended):
            if action not in pod_service_pb2.LeaseAction.values():
                raise Unavailable("away")
            yield pod_service_pb2.WatchLeaseResponse(
                action=pod_service_pb2.LeaseAction.ValueType(action)
            )

    def cancel(self) -> None:
        self.actions.put(self.ended)


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def guard() -> LeaseGuard:
    return LeaseGuard("l", 1)


@pytest.fixture
def renewal(control: FakeControl, guard: LeaseGuard) -> Iterator[Renewal]:
    renewal = Renewal(control, guard, 1.5)  # type: ignore[arg-type]
    yield renewal
    renewal.stop()


def eventually(condition: Callable[[], bool], within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def evaluation(name: str, agent: str, *, look: bool) -> agent_pb2.Evaluation:
    purpose = (
        agent_pb2.EVALUATION_PURPOSE_PROGRESS if look else agent_pb2.EVALUATION_PURPOSE_CANDIDATE
    )
    return agent_pb2.Evaluation(evaluation_id=name, agent=agent, purpose=purpose)


def test_the_first_renewal_makes_the_lease_ours(renewal, guard):
    renewal.start()
    guard.check()


def test_it_goes_on_within_every_term(renewal, guard, control):
    renewal.start()
    assert eventually(lambda: len(control.requests) >= 5)
    guard.check()


def test_a_first_renewal_that_is_refused_raises(renewal, guard, control):
    control.answers = [Fenced("no")]
    with pytest.raises(Fenced):
        renewal.start()


def test_evaluations_are_delivered_once_and_soon(renewal, control):
    renewal.start()
    renewal.add_evaluations([evaluation("e1", "a", look=False)])
    assert eventually(lambda: any(request.evaluations for request in control.requests))
    assert eventually(lambda: not renewal.undelivered())
    count = len(control.requests)
    assert eventually(lambda: len(control.requests) > count)
    assert sum(len(request.evaluations) for request in control.requests) == 1


def test_of_the_looks_of_one_agent_only_the_newest_is_told(renewal, control):
    renewal.add_evaluations([evaluation(f"e{i}", f"a{i % 2}", look=True) for i in range(6)])
    renewal.add_evaluations([evaluation("c", "a0", look=False)])
    renewal.start()
    assert sorted(one.evaluation_id for one in control.requests[0].evaluations) == ["c", "e4", "e5"]


def test_what_was_not_acknowledged_is_told_again(renewal, control, guard):
    renewal.start()
    control.answers = [Unavailable("away")] * 2
    renewal.add_evaluations([evaluation("e1", "a", look=False)])
    assert eventually(lambda: not renewal.undelivered())
    told = [request for request in control.requests if request.evaluations]
    assert len(told) == 3
    guard.check()


def test_silence_lets_the_lease_run_out(renewal, control, guard):
    renewal.start()
    control.answers = [Unavailable("away")] * 1000
    assert eventually(lambda: guard.remaining_s == 0.0)
    with pytest.raises(Fenced):
        guard.check()


@pytest.mark.parametrize("refusal", [Fenced("expired"), PermissionRefused("another lease's token")])
def test_a_refusal_ends_it_at_once(renewal, control, guard, refusal):
    renewal.start()
    control.answers = [refusal]
    assert eventually(lambda: guard.remaining_s == 0.0)
    count = len(control.requests)
    time.sleep(0.8)
    assert len(control.requests) == count


def test_orders_of_the_orchestrator_arrive(renewal, control):
    control.response.action = pod_service_pb2.LEASE_ACTION_FINISH
    control.response.admission_score = 3.5
    renewal.start()
    assert renewal.action == pod_service_pb2.LEASE_ACTION_FINISH
    assert renewal.admission_score == 3.5


def test_an_order_need_not_wait_for_a_renewal(renewal, control):
    renewal.start()
    control.calls.get(timeout=3.0).actions.put(99)  # the stream breaks
    call = control.calls.get(timeout=3.0)
    control.answers = [Unavailable("away")] * 1000
    call.actions.put(pod_service_pb2.LEASE_ACTION_RELEASE)
    assert eventually(lambda: renewal.calls_back)
