"""The calls to the orchestrator, over a stub that answers as the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from podracer.common.v1 import cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import Fenced, Unauthenticated, Unavailable
from podracer_learner.lease import LeaseControl, LeaseGuard, lease_work, work_request

Answer = Any


class FutureMethod:
    """A stub's method of which only `future` is used."""

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers
        self.request_ids: list[str] = []
        self.waiting: Future[Any] = Future()

    def future(self, request: pod_service_pb2.LeaseWorkRequest, timeout: float) -> Future[Any]:
        self.request_ids.append(request.request_id)
        future: Future[Any] = Future()
        if not self.answers:
            return self.waiting
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


class Stub:
    def __init__(self, **methods: Any) -> None:
        self.__dict__.update(methods)


def leased(name: str) -> pod_service_pb2.LeaseWorkResponse:
    return pod_service_pb2.LeaseWorkResponse(lease=pod_service_pb2.Lease(name=name))


def asked(
    answers: list[Answer], stop: threading.Event | None = None
) -> tuple[pod_service_pb2.Lease | None, list[str]]:
    method = FutureMethod(answers)
    request = work_request("projects/p/pods/a", "unix:///x", pod_service_pb2.PodCapabilities())
    return lease_work(
        Stub(LeaseWork=method), request, stop or threading.Event()
    ), method.request_ids  # type: ignore[arg-type]


class TestLeaseWork:
    def test_it_asks_until_there_is_work(self):
        lease, ids = asked(
            [pod_service_pb2.LeaseWorkResponse(), pod_service_pb2.LeaseWorkResponse(), leased("l")]
        )
        assert lease is not None
        assert lease.name == "l"
        assert len(set(ids)) == 3

    def test_an_unanswered_request_is_repeated_under_its_id(self):
        lease, ids = asked([Unavailable("away"), Unavailable("away"), leased("l")])
        assert lease is not None
        assert len(ids) == 3
        assert len(set(ids)) == 1

    def test_a_wrong_token_is_not_tried_again(self):
        with pytest.raises(Unauthenticated):
            asked([Unauthenticated("who are you?"), leased("l")])

    def test_stop_ends_the_wait_at_once(self):
        stop = threading.Event()
        threading.Timer(0.1, stop.set).start()
        lease, _ = asked([], stop)
        assert lease is None


@pytest.fixture
def guard() -> LeaseGuard:
    guard = LeaseGuard("projects/p/leases/l", 3)
    guard.extend(guard.now(), 10.0)
    return guard


@pytest.fixture
def calls() -> list[tuple[Any, dict[str, Any]]]:
    return []


@pytest.fixture
def make_control(guard: LeaseGuard, calls: list[Any]) -> Callable[..., LeaseControl]:
    def make(errors: list[Exception]) -> LeaseControl:
        def method(request: Any, **options: Any) -> None:
            calls.append((request, options))
            if errors:
                raise errors.pop(0)

        lease = pod_service_pb2.Lease(name="projects/p/leases/l", fence=3, token="lease.token")
        stub = Stub(CommitCheckpoint=method, CompleteWork=method, ReleaseLease=method)
        return LeaseControl(stub, lease, guard)  # type: ignore[arg-type]

    return make


class TestLeaseControl:
    def test_every_call_names_the_lease_and_carries_its_token(self, make_control, calls):
        control = make_control([])
        control.commit([])
        control.complete(pod_service_pb2.CompleteWorkRequest())
        control.release(cohort_pb2.Problem(reason="X"))
        for request, options in calls:
            assert (request.lease, request.fence) == ("projects/p/leases/l", 3)
            assert dict(options["metadata"])["authorization"] == "Bearer lease.token"
            assert 0 < options["timeout"] <= 10

    def test_what_must_land_is_repeated(self, make_control, calls):
        make_control([Unavailable("away"), Unavailable("away")]).commit([])
        assert len(calls) == 3

    def test_nothing_is_repeated_once_the_lease_is_gone(self, make_control, calls, guard):
        control = make_control([Unavailable("away")] * 1000)
        threading.Timer(0.2, lambda: guard.revoke("expired")).start()
        with pytest.raises(Fenced):
            control.complete(pod_service_pb2.CompleteWorkRequest())

    def test_nothing_is_sent_at_all_without_a_lease(self, make_control, calls, guard):
        guard.revoke("expired")
        control = make_control([])
        with pytest.raises(Fenced):
            control.commit([])
        control.release(cohort_pb2.Problem())
        assert not calls

    def test_a_refusal_is_final(self, make_control, calls):
        with pytest.raises(Fenced):
            make_control([Fenced("a newer lease")]).commit([])
        assert len(calls) == 1

    def test_a_release_that_fails_is_left_to_expiry(self, make_control, guard):
        make_control([Unavailable("away")]).release(cohort_pb2.Problem())
        with pytest.raises(Fenced):
            guard.check()
