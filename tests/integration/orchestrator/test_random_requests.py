"""No request, however strange, breaks the orchestrator: each is answered or refused for a reason that is the caller's.

PODRACER_FUZZ says how many requests; `make fuzz` has many.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.protobuf.message_factory import GetMessageClass

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2, job_service_pb2, pod_service_pb2
from podracer_core.errors import DeadlineExpired, PodracerError
from podracer_core.rpc.auth import bearer
from support.random_messages import RandomMessages, bounded

COUNT = int(os.environ.get("PODRACER_FUZZ", "300"))
LONG = evolution_pb2.Objective(max_env_steps=1_000_000_000)
WAITS = ("WatchJob", "WatchJobs", "CreateJob")
"""Calls that may take longer than this test waits: watchers of jobs in which nothing happens, imports."""
SERVICES = {
    "jobs": job_service_pb2.DESCRIPTOR.services_by_name["JobService"],
    "artifacts": artifact_service_pb2.DESCRIPTOR.services_by_name["ArtifactService"],
    "pods": pod_service_pb2.DESCRIPTOR.services_by_name["PodService"],
}


async def call(stub: Any, method: Any, request: Any, token: str | None) -> None:
    """Raises what the server answers, unless it is the caller's own fault."""
    metadata = bearer(token) if token else None
    stream, timeout_s = method.client_streaming, 2.0 if method.name in WAITS else 30.0
    try:
        answer = getattr(stub, method.name)(
            iter([request]) if stream else request, metadata=metadata, timeout=timeout_s
        )
        if method.server_streaming:
            async for _ in answer:
                break
            answer.cancel()
        else:
            await answer
    except DeadlineExpired:
        assert method.name in WAITS, f"{method.name} hangs for {request}"
    except PodracerError as error:
        assert type(error) is not PodracerError, f"{method.name}: {error} for {request}"
    except grpc.RpcError as error:
        raise AssertionError(f"{method.name}: {error}") from error


@pytest.mark.timeout(7200)
async def test_any_request_is_answered_or_refused(site: Any) -> None:
    chance = random.Random(int(os.environ.get("PODRACER_FUZZ_SEED", "1")))
    job = await site.create(pod=job_pb2.PodShape(members=2, max_count=4), objective=LONG)
    learner = site.learner()
    texts = [job.name, job.uid, learner.name]
    methods = [(stub, method) for stub, service in SERVICES.items() for method in service.methods]
    for number in range(COUNT):
        if learner.lease is None or number % 200 == 0:
            lease = await learner.ask(0.3)
            if lease is None:  # another pod's CompleteWork has ended the job
                job = await site.create(pod=job_pb2.PodShape(members=2, max_count=4), objective=LONG)
                lease = await learner.ask(2.0)
            if lease is not None and lease.HasField("train"):
                texts = [
                    job.name,
                    job.uid,
                    learner.name,
                    lease.name,
                    *(each.name for each in lease.train.cohort.members),
                ]
        stub, method = chance.choice(methods)
        request = RandomMessages(chance, texts).fill(GetMessageClass(method.input_type)())
        request = bounded(request) if chance.random() < 0.8 else request
        asked = {"LeaseWork": request, "CompleteWork": getattr(request, "next", None)}.get(method.name)
        if asked is not None and (method.name == "LeaseWork" or request.HasField("next")):
            asked.wait.CopyFrom(duration_pb2.Duration())
        token = None
        if stub == "pods" and method.name != "LeaseWork" and learner.lease is not None:
            request.lease, request.fence = learner.lease.name, learner.lease.fence
            token = learner.lease.token
        if method.name in ("CancelJob", "DeleteJob", "UpdateJob") and chance.random() < 0.9:
            request.name = "projects/default/jobs/absent"
        await call(getattr(site.client, stub), method, request, token)
        if method.name in ("CompleteWork", "ReleaseLease"):
            learner.lease = None
    assert (await site.create()).state == job_pb2.JOB_STATE_PENDING
    assert not site.server.orchestrator.failed.done()
    await asyncio.sleep(0)
