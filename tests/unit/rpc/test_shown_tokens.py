"""What a learner shows to a worker or an evaluator opens nothing else, and nothing after the
lease."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from podracer_core.errors import Unauthenticated
from podracer_platform.rpc import (
    POD_KEYS,
    Authorizer,
    LeaseTokens,
    Role,
    ShownTokens,
    TokenFiles,
    TokensShownHere,
    auth,
    bearer,
    hash_token,
    methods_of,
    public_key,
)

COLLECT = "/podracer.worker.v1.WorkerService/Collect"
EVALUATE = "/podracer.evaluator.v1.EvaluatorService/Evaluate"
LEASE_WORK = "/podracer.orchestrator.v1.PodService/LeaseWork"
SOCKETS = "unix:///run/podracer/sockets"


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["digests", "plain"])
def server(
    tmp_path: Path, request: pytest.FixtureRequest, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Authorizer]:
    """A pod's worker or evaluator: in a container it has digests and public keys, on one machine
    the token itself."""
    (tmp_path / "pod").write_text(
        "secret\n" if request.param == "plain" else f"{hash_token('secret')}\n"
    )
    if request.param == "digests":
        (tmp_path / POD_KEYS).write_text(f"{public_key('secret')}\n")
    monkeypatch.setattr(
        auth, "TokensShownHere", lambda directory: TokensShownHere(directory, clock)
    )

    def make(kind: str, address: str) -> Authorizer:
        authorizer = Authorizer(methods_of(kind), TokenFiles(tmp_path))
        authorizer.accept_shown(kind, address)
        return authorizer

    return make


@pytest.fixture
def shown(clock: Clock) -> ShownTokens:
    shown = ShownTokens(lambda: "secret", clock)
    shown.lease = "projects/p/leases/l1"
    return shown


def reason(authorizer: Authorizer, method: str, token: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        authorizer.authorize(method, bearer(token))
    return caught.value.reason


def test_a_worker_that_replays_what_it_was_shown_is_refused(server, shown, tmp_path):
    token = shown.at("worker", f"{SOCKETS}/worker-0/worker-0.sock")()
    caller = server("worker", f"{SOCKETS}/worker-0.sock").authorize(COLLECT, bearer(token))
    assert (caller.role, caller.token, caller.name) == (Role.POD, "l1", "projects/p/leases/l1")
    for kind, method, address in (
        ("worker", COLLECT, f"{SOCKETS}/worker-1.sock"),
        ("worker", COLLECT, "127.0.0.1:50051"),
        ("evaluator", EVALUATE, f"{SOCKETS}/evaluator.sock"),
        ("evaluator", EVALUATE, f"{SOCKETS}/worker-0.sock"),
    ):
        assert reason(server(kind, address), method, token) == "WRONG_AUDIENCE"
    orchestrator = Authorizer(
        methods_of("orchestrator"), TokenFiles(tmp_path), LeaseTokens(b"s" * 32)
    )
    assert reason(orchestrator, LEASE_WORK, token) == "UNKNOWN_TOKEN"


def test_it_is_refused_after_the_lease(server, shown, clock):
    worker, source = server("worker", f"{SOCKETS}/w.sock"), shown.at("worker", f"{SOCKETS}/w.sock")
    token = source()
    clock.now += 59
    assert source() != token, "the lease goes on, with a new one"
    clock.now += 61
    assert reason(worker, COLLECT, token) == "TOKEN_EXPIRED"
    assert worker.authorize(COLLECT, bearer(source())).role is Role.POD


def test_over_a_network_it_is_for_one_machine_and_port(server, shown):
    worker = server("worker", "0.0.0.0:50051")
    for host in ("127.0.0.1", "localhost", socket.gethostname()):
        assert worker.authorize(COLLECT, bearer(shown.at("worker", f"{host}:50051")()))
    for place in ("192.0.2.7:50051", "127.0.0.1:50052"):
        assert reason(worker, COLLECT, shown.at("worker", place)()) == "WRONG_AUDIENCE"
    behind = server("worker", "192.0.2.7:50051")
    assert behind.authorize(COLLECT, bearer(shown.at("worker", "192.0.2.7:50051")()))


def test_who_has_read_a_workers_files_can_show_nothing(server, tmp_path):
    worker = server("worker", f"{SOCKETS}/w.sock")
    digest = hash_token("secret")
    for word in (digest, digest.removeprefix("sha256:"), public_key("secret")):
        assert (
            reason(
                worker,
                COLLECT,
                ShownTokens(lambda word=word: word).at("worker", f"{SOCKETS}/w.sock")(),
            )
            == "UNKNOWN_TOKEN"
        )
