"""No request, however strange, breaks the orchestrator: each is answered or refused for a reason
that is the caller's.

PODRACER_FUZZ says how many requests; `make fuzz` has many.
"""

from __future__ import annotations

import os
import random

import pytest
from google.protobuf import duration_pb2

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2, job_service_pb2, pod_service_pb2
from podracer_platform.rpc import bearer
from support.random_requests import COUNT, Requests

SHAPE = {
    "pod": job_pb2.PodShape(members=2, max_count=4),
    "objective": evolution_pb2.Objective(max_env_steps=1_000_000_000),
}
WAITS = ("WatchJob", "WatchJobs", "CreateJob")
"""Calls that may take longer than this test waits: watchers of jobs in which nothing happens,
imports."""
SERVICES = (
    job_service_pb2.DESCRIPTOR.services_by_name["JobService"],
    artifact_service_pb2.DESCRIPTOR.services_by_name["ArtifactService"],
    pod_service_pb2.DESCRIPTOR.services_by_name["PodService"],
)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)]
)
async def test_any_request_is_answered_or_refused(site, database, request):
    if database == "postgresql":
        await site.restart(database=request.getfixturevalue("postgresql").create_database("random"))
    requests = Requests(random.Random(int(os.environ.get("PODRACER_FUZZ_SEED", "1"))), WAITS)
    chance = requests.chance
    job = await site.create(**SHAPE)
    learner = site.learner()
    texts = [job.name, job.uid, learner.name]
    methods = [method for service in SERVICES for method in service.methods]
    for number in range(COUNT):
        if learner.lease is None or number % 200 == 0:
            lease = await learner.ask(0.3)
            if lease is None:  # another pod's CompleteWork has ended the job
                job = await site.create(**SHAPE)
                lease = await learner.ask(2.0)
            if lease is not None and lease.HasField("train"):
                agents = [each.name for each in lease.train.cohort.members]
                texts = [job.name, job.uid, learner.name, lease.name, *agents]
        method = chance.choice(methods)
        made = requests.make(method, texts)
        asked = {"LeaseWork": made, "CompleteWork": getattr(made, "next", None)}.get(method.name)
        if asked is not None and (method.name == "LeaseWork" or made.HasField("next")):
            asked.wait.CopyFrom(duration_pb2.Duration())
        is_pods = method.containing_service is SERVICES[2]
        metadata = None
        if is_pods and method.name != "LeaseWork" and learner.lease is not None:
            made.lease, made.fence = learner.lease.name, learner.lease.fence
            metadata = bearer(learner.lease.token)
        if method.name in ("CancelJob", "DeleteJob", "UpdateJob") and chance.random() < 0.9:
            made.name = "projects/default/jobs/absent"
        await requests.send(
            site.pod_channel if is_pods else site.client_channel, method, made, metadata
        )
        if method.name in ("CompleteWork", "ReleaseLease"):
            learner.lease = None
    requests.assert_bounded()
    assert (await site.create()).state == job_pb2.JOB_STATE_PENDING
    assert not site.server.orchestrator.failed.done()
