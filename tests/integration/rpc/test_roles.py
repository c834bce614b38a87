"""Who may call what: every method of every service, with every kind of token, over real gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.learner.v1 import learner_service_pb2
from podracer.orchestrator.v1 import artifact_service_pb2, job_service_pb2, pod_service_pb2
from podracer.policy.v1 import policy_service_pb2
from podracer.worker.v1 import worker_service_pb2
from podracer_core.errors import PermissionRefused, PodracerError, Unauthenticated
from podracer_core.rpc.auth import ACTS, Authorizer, methods_of
from podracer_core.rpc.channel import open_channel
from podracer_core.rpc.server import RpcServer, create_server
from podracer_core.rpc.signed_tokens import PUBLIC_KEYS, Claims, sign
from podracer_core.rpc.tokens import FILE_ROLES, LeaseTokens, Role, TokenFiles, create_tokens

SERVERS = ("orchestrator", "leaderboard", "policy", "learner", "worker", "evaluator")
TABLES = {method: roles for server in SERVERS for method, roles in methods_of(server).items()}

MATRIX = {
    "orchestrator.v1.JobService": ("client", [
        "CreateJob", "UpdateJob", "CancelJob", "DeleteJob", "CollectCheckpoints", "PromotePolicy", "RollbackPolicy",
        "ForkAgent", "PinAgent", "StopAgent",
    ]),
    "orchestrator.v1.JobService ": ("client viewer", [
        "GetJob", "ListJobs", "WatchJob", "WatchJobs", "ListPods", "ListEvents", "GetCapacity", "ListPromotions",
    ]),
    "orchestrator.v1.ArtifactService": ("client", ["Upload", "DeleteArtifact"]),
    "orchestrator.v1.ArtifactService ": ("client viewer", ["Download", "GetArtifact", "ListArtifacts"]),
    "orchestrator.v1.PodService": ("lease", [
        "RenewLease", "WatchLease", "CommitCheckpoint", "CompleteWork", "ReleaseLease", "GetStoreAccess",
    ]),
    "orchestrator.v1.PodService ": ("pod", ["LeaseWork"]),
    "leaderboard.v1.LeaderboardService": ("control", [
        "CreateLeaderboard", "ProposeCohort", "SubmitCandidate", "RecordEvaluations", "SetAlias", "DeleteLeaderboard",
        "Exchange", "ForkAgent", "PinAgent", "StopAgent",
    ]),
    "leaderboard.v1.LeaderboardService ": ("client viewer control", [
        "GetLeaderboard", "ListAgents", "GetAgent", "ListEvaluations", "WatchLeaderboard", "GetStatistics",
        "ListAliasHistory",
    ]),
    "policy.v1.PolicyService": ("client viewer control", ["ListPolicies", "GetPolicy"]),
    "policy.v1.PolicyService ": ("client control", ["Act", "ActStream"]),
    "policy.v1.PolicyService  ": ("control", ["LoadPolicy", "UnloadPolicy"]),
    "learner.v1.LearnerService": ("pod", ["FetchPolicy", "Fuse"]),
    "learner.v1.LearnerService ": ("control pod", ["Checkpoint"]),
    "learner.v1.LearnerService  ": ("client viewer control pod", ["GetStatus"]),
    "worker.v1.WorkerService": ("pod", ["Collect", "PutFile"]),
    "worker.v1.WorkerService ": ("control pod", ["GetStatus"]),
    "evaluator.v1.EvaluatorService": ("pod", ["Evaluate"]),
    "evaluator.v1.EvaluatorService ": ("control pod", [
        "EvaluateCheckpoint", "Backtest", "Inspect", "ExportPolicy", "RecordVideo", "PutFile", "GetStatus",
    ]),
}  # fmt: skip
EXPECTED = {
    f"/podracer.{service.strip()}/{method}": set(roles.split())
    for service, (roles, methods) in MATRIX.items()
    for method in methods
}
SERVICES = [
    service
    for module in (
        job_service_pb2, artifact_service_pb2, pod_service_pb2, leaderboard_service_pb2, policy_service_pb2,
        learner_service_pb2, worker_service_pb2, evaluator_service_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
]  # fmt: skip


def test_every_method_of_the_contracts_has_its_roles() -> None:
    assert {f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods} == set(
        EXPECTED
    )
    assert {method: set(map(str, roles)) for method, roles in TABLES.items()} == EXPECTED
    for method in ACTS:  # what a viewer may do changes nothing, and nothing of what a pod does is one
        assert not EXPECTED[method] & {"viewer", "pod", "lease"}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    create_tokens(folder)
    return folder


@pytest.fixture(scope="module")
def viewer(tokens: Path) -> str:
    token, key = sign(b"s" * 32, Claims("1", "anna", "viewer", 1 << 40, (), ()))
    (tokens / PUBLIC_KEYS).write_text(f"{key}\n")
    return token


@pytest.fixture(scope="module")
def server(tokens: Path) -> Iterator[RpcServer]:
    """All methods of all services, each of which answers `done`."""

    def register(server: Any) -> None:
        for service in SERVICES:
            handlers = {
                method.name: grpc.stream_stream_rpc_method_handler(
                    lambda requests, _: iter([b"done" for _ in requests])
                )
                for method in service.methods
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    authorizer = Authorizer(TABLES, TokenFiles(tokens), LeaseTokens(b"s" * 32))
    with create_server("127.0.0.1:0", [register], authorizer) as server:
        yield server


@pytest.mark.parametrize("role", Role)
def test_each_role_may_do_exactly_this(server: RpcServer, tokens: Path, viewer: str, role: Role) -> None:
    token = (tokens / role).read_text().strip() if role in FILE_ROLES else LeaseTokens(b"s" * 32).issue("l", 1)
    token = viewer if role is Role.VIEWER else token
    allowed = set()
    with open_channel(server.address, token) as channel:
        for method in EXPECTED:
            try:
                assert list(channel.stream_stream(method)(iter([b""]), timeout=10)) == [b"done"]
                allowed.add(method)
            except PermissionRefused:
                pass
    assert allowed == {method for method, roles in EXPECTED.items() if role in roles}


@pytest.mark.parametrize("token", [None, "guessed", "", "lease.l.1.forged", "pdr1.e30.forged"])
def test_who_has_no_token_may_do_nothing(server: RpcServer, token: str | None) -> None:
    with open_channel(server.address, token) as channel:
        for method in EXPECTED:
            with pytest.raises(PodracerError) as caught:
                list(channel.stream_stream(method)(iter([b""]), timeout=10))
            assert isinstance(caught.value, Unauthenticated)
