"""The bounds of requests are those of the protos; pages end early."""

from __future__ import annotations

from typing import Any

import pytest
from buf.validate import validate_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from podracer.common.v1 import agent_pb2, tensor_pb2
from podracer.evaluator.v1 import evaluator_service_pb2 as evaluator
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.learner.v1 import learner_service_pb2 as learner
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import job_service_pb2 as job_service
from podracer.orchestrator.v1 import pod_service_pb2 as pod
from podracer.policy.v1 import policy_service_pb2 as policy
from podracer.worker.v1 import worker_service_pb2 as worker
from podracer_core.errors import InvalidInput, UserCodeFailed, plain
from podracer_platform.rpc import PAGE_BYTES, check_bounds, from_status, page, to_status
from support.errors import raises

Evaluation = agent_pb2.Evaluation
REQUESTS = [
    GetMessageClass(method.input_type)
    for file in (
        artifact_pb2,
        job_service,
        leaderboard_pb2,
        pod,
        evaluator,
        learner,
        policy,
        worker,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
CHECKED_BY_THEMSELVES = {"paths", "key", "value", "data", "inline"}
"""FieldMask, entries of maps, bytes of files and tensors, which the method's size bounds."""


def renewal(**changes: Any) -> pod.RenewLeaseRequest:
    return pod.RenewLeaseRequest(evaluations=[Evaluation(**changes)])


def progress(**changes: Any) -> pod.CommitCheckpointRequest:
    return pod.CommitCheckpointRequest(
        members=[pod.MemberCheckpoint(progress=pod.MemberProgress(**changes))]
    )


@pytest.mark.parametrize(
    ("request_", "field", "bound"),
    [
        (
            pod.RenewLeaseRequest(evaluations=[Evaluation()] * 100_000),
            "evaluations",
            "has 100000 items.* 1000 item",
        ),
        (
            renewal(evaluation_id="x" * 1_000_000),
            "evaluations[0].evaluation_id",
            "has 1000000 bytes, .* 200 bytes",
        ),
        (renewal(purpose=99), "evaluations[0].purpose", "is 99, .* defined"),
        (renewal(mean=float("inf")), "evaluations[0].mean", "is inf, .*finite"),
        (renewal(returns=[1.0, float("nan")]), "evaluations[0].returns[1]", "is nan, .*finite"),
        (
            renewal(checkpoint={"prefix": "../../../../etc/"}),
            "evaluations[0].checkpoint.prefix",
            "is '../../../../etc/', .*pattern",
        ),
        (
            renewal(checkpoint={"prefix": "projects/p/../x"}),
            "evaluations[0].checkpoint.prefix",
            "pattern",
        ),
        (
            renewal(statistics={"k" * 201: 1.0}),
            f"evaluations[0].statistics['{'k' * 100}']",
            "has 201 bytes",
        ),
        (
            progress(env_steps=2**63 - 1),
            "members[0].progress.env_steps",
            "is 9223372036854775807, .*1000000000000000",
        ),
        (progress(env_steps=-5), "members[0].progress.env_steps", "is -5, .* or equal to 0"),
        (pod.ReleaseLeaseRequest(reason={"message": "nul \0 here"}), "reason.message", "contains"),
        (
            pod.LeaseWorkRequest(capabilities={"gpus": ["H100"] * 1001}),
            "capabilities.gpus",
            "1001 items",
        ),
        (job_service.ListJobsRequest(page_size=-5), "page_size", "is -5"),
        (job_service.ListJobsRequest(page_token="\0"), "page_token", "contains"),
        (artifact_pb2.ListArtifactsRequest(page_size=10**9), "page_size", "1000000000"),
        (artifact_pb2.ListArtifactsRequest(page_token="9" * 5000), "page_token", "has 5000 bytes"),
        (artifact_pb2.DownloadRequest(paths=["a"] * 500_000), "paths", "500000 items"),
        (
            job_service.WatchJobsRequest(
                after_positions={str(number): 1 for number in range(50_001)}
            ),
            "after_positions",
            "50001 items",
        ),
        (
            job_service.CreateJobRequest(spec={"environment": {"id": "x" * 1001}}),
            "spec.environment.id",
            "1001 bytes",
        ),
        (leaderboard_pb2.SetAliasRequest(reason="x" * 5001), "reason", "5001 bytes"),
        (worker.CollectRequest(open={"device": "c" * 201}), "open.device", "201 bytes"),
        (
            worker.CollectRequest(open={"cohort": {"members": [{}] * 10_001}}),
            "open.cohort.members",
            "10001 items",
        ),
        (
            worker.PutFileRequest(header={"sha256": "0", "size_bytes": -1}),
            "header.size_bytes",
            "is -1",
        ),
        (evaluator.EvaluateRequest(order={"seeds": range(100_001)}), "order.seeds", "100001 items"),
        (evaluator.InspectRequest(environment={"id": "nul\0"}), "environment.id", "contains"),
        (learner.CheckpointRequest(agents=["a" * 501]), "agents[0]", "501 bytes"),
        (policy.ActRequest(observations={"shape": [1] * 33}), "observations.shape", "33 items"),
        (policy.LoadPolicyRequest(header={"source": "x" * 4001}), "header.source", "4001 bytes"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_path(request_, field, bound):
    with raises(InvalidInput, "OUT_OF_BOUNDS", match=bound) as refused:
        check_bounds(request_)
    assert refused.value.violations[0].field == field
    assert len(refused.value.message) < 500


def test_what_is_usual_passes():
    checkpoint = {
        "prefix": "projects/p/jobs/0f/agents/a0001/checkpoints/100-12/",
        "manifest_sha256": "0" * 64,
    }
    check_bounds(
        renewal(evaluation_id="12-1", purpose=1, returns=[1.0], mean=1.0, checkpoint=checkpoint)
    )
    for request in REQUESTS:
        check_bounds(request())
    check_bounds(tensor_pb2.TensorChunk(data=b"x" * 2_000_000))


def test_every_text_and_list_of_a_request_has_a_bound():
    free, known = set(), set()

    def look(descriptor: Any) -> None:
        if descriptor.full_name in known or descriptor.full_name.startswith("google."):
            return
        known.add(descriptor.full_name)
        for field in descriptor.fields:
            is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
            bounded = (
                field.GetOptions().HasExtension(validate_pb2.field)
                or field.name in CHECKED_BY_THEMSELVES
            )
            if (is_text or field.is_repeated) and not bounded:
                free.add(f"{descriptor.full_name}.{field.name}")
            if field.message_type is not None:
                look(field.message_type)

    for request in REQUESTS:
        look(request.DESCRIPTOR)
    assert not free


def test_a_page_ends_at_its_size_or_at_a_megabyte():
    small = [Evaluation(evaluation_id=str(number)) for number in range(5)]
    large = [Evaluation(first_break="x" * (PAGE_BYTES // 2)) for _ in range(4)]
    assert page(small, 3, lambda row: row, lambda row: row.evaluation_id) == (small[:3], "2")
    assert page(small, 5, lambda row: row, lambda row: row.evaluation_id) == (small, "")
    assert len(page(large, 4, lambda row: row, lambda row: "next")[0]) == 1
    assert page(iter(large[:1]), 4, lambda row: row, lambda row: "next") == (large[:1], "")


def test_texts_of_users_survive_messages_and_databases():
    assert plain("ä€😀\n") == "ä€😀\n"
    error = UserCodeFailed("nul \0 half \ud83d", user_traceback="trace\0\udc00", key="\0")
    assert (error.message, error.user_traceback) == ("nul \\0 half \\ud83d", "trace\\0\\udc00")
    assert from_status(to_status(error)).message == error.message
