"""What a token for some projects may ask."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as boards
from podracer.orchestrator.v1 import artifact_service_pb2 as artifacts
from podracer.orchestrator.v1 import job_pb2, pod_service_pb2
from podracer.orchestrator.v1 import job_service_pb2 as jobs
from podracer_core.errors import PermissionRefused
from podracer_platform.rpc import Identity, Role, check_projects
from support.errors import raises

OWN = Identity(Role.CLIENT, projects=frozenset({"own", "second"}))
JOB = "projects/other/jobs/j"


def nested() -> Message:
    work = pod_service_pb2.TrainWork()
    work.cohort.members.add().initialization.parents.add(agent=f"{JOB}/agents/a")
    return work


def in_lists() -> Message:
    spec = job_pb2.JobSpec()
    spec.environment.kwargs["places"] = [[5, JOB]]
    return jobs.CreateJobRequest(parent="projects/own", spec=spec)


REFUSED: list[Message] = [
    jobs.GetJobRequest(name=JOB),
    jobs.CreateJobRequest(parent="projects/other"),
    jobs.CreateJobRequest(),  # the default project
    jobs.ListJobsRequest(),
    jobs.ListPodsRequest(parent="projects/own", job=JOB),
    jobs.CreateJobRequest(parent="projects/own", spec=job_pb2.JobSpec(labels={"like": JOB})),
    artifacts.DownloadRequest(name="projects/other/artifacts/a"),
    artifacts.UploadRequest(header=artifacts.UploadHeader(parent="projects/other")),
    artifacts.UploadRequest(header=artifacts.UploadHeader()),
    boards.GetLeaderboardRequest(name="projects/other/leaderboards/j"),
    boards.GetLeaderboardRequest(name="projects/own\n/leaderboards/j"),
    boards.GetLeaderboardRequest(name="projects//leaderboards/j"),
    pod_service_pb2.LeaseWorkRequest(pod="projects/other/pods/x"),
    nested(),
    in_lists(),
]
ALLOWED: list[Message] = [
    jobs.GetJobRequest(name="projects/own/jobs/j"),
    jobs.GetJobRequest(name="nonsense"),  # for the method itself to refuse
    jobs.CreateJobRequest(
        parent="projects/second", spec=job_pb2.JobSpec(display_name="a", labels={"k": "v"})
    ),
    artifacts.UploadRequest(data=b"projects/other/jobs/j"),
    pod_service_pb2.LeaseWorkRequest(pod="projects/own/pods/x"),
    agent_pb2.CheckpointReference(prefix="projects/own/jobs/j/agents/a/checkpoints/1-1/"),
]


@pytest.mark.parametrize("request_", REFUSED, ids=str)
def test_what_is_about_another_project_is_refused(request_):
    with raises(PermissionRefused, "OTHER_PROJECT", match="projects/own, projects/second"):
        check_projects(OWN, request_)
    check_projects(Identity(Role.CLIENT), request_)


@pytest.mark.parametrize("request_", ALLOWED, ids=str)
def test_what_is_about_ones_own_goes_on(request_):
    check_projects(OWN, request_)


def test_a_lease_may_name_its_pod_whose_project_may_be_another():
    """Pods of a pool serve all projects. Nothing else of another project passes, however deep it
    lies."""
    lease = Identity(Role.LEASE, "l", 1, frozenset({"own"}))
    other_pod = pod_service_pb2.LeaseWorkRequest(pod="projects/other/pods/x")
    check_projects(
        lease, pod_service_pb2.CompleteWorkRequest(lease="projects/own/leases/l", next=other_pod)
    )
    said = cohort_pb2.Problem(message="projects/other/jobs/j: so says a user's exception")
    check_projects(
        lease, pod_service_pb2.CompleteWorkRequest(lease="projects/own/leases/l", problem=said)
    )
    stolen = agent_pb2.CheckpointReference(prefix="projects/other/jobs/j/agents/a/checkpoints/1-1/")
    evaluation = agent_pb2.Evaluation(returns=[1.0] * 3, checkpoint=stolen)
    for request in (
        pod_service_pb2.RenewLeaseRequest(lease="projects/other/leases/l"),
        pod_service_pb2.RenewLeaseRequest(lease="projects/own/leases/l", evaluations=[evaluation]),
        pod_service_pb2.LeaseWorkRequest(pod="projects/other/pods/x/y"),
    ):
        with pytest.raises(PermissionRefused):
            check_projects(lease, request)
