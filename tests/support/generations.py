"""The generations of a continuous job, played: data sets that change, learners, contests."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from podracer.common.v1 import environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2

STEPS = evolution_pb2.Objective(max_env_steps=30)
ONE = evolution_pb2.Evolution(population=1, leaderboard_size=1)
TRADER = "projects/default/jobs/trader"
PROMOTED, KEPT, FAILED, ROLLED_BACK = (
    getattr(service_pb2, f"PROMOTION_DECISION_{word}")
    for word in ("PROMOTED", "KEPT", "FAILED", "ROLLED_BACK")
)


async def upload(site: Any, content: bytes) -> None:
    """The data set `china` has this content from now on."""
    header = artifact_pb2.UploadHeader(
        artifact_id="china",
        kind=artifact_pb2.ARTIFACT_KIND_DATA_SET,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        replace=True,
    )
    parts = [artifact_pb2.UploadRequest(header=header), artifact_pb2.UploadRequest(data=content)]
    await site.client.artifacts.Upload(iter(parts))


async def create(
    site: Any,
    job_id: str = "trader",
    *,
    search: evolution_pb2.Search | None = None,
    **continuous: Any,
) -> job_pb2.Job:
    environment = environment_pb2.EnvironmentSpec(entry_point="a:B")
    environment.kwargs.update({"split": "train", "fee": 0.5})
    spec = job_pb2.JobSpec(
        display_name="trader",
        environment=environment,
        objective=STEPS,
        evolution=ONE,
        search=search,
        data_sets={"table": "china"},
        continuous=job_pb2.Continuous(**continuous),
    )
    return (await site.jobs.CreateJob(spec=spec, job_id=job_id)).job


async def begin(site: Any, description: environment_pb2.EnvironmentDescription) -> Any:
    """The learner of the next generation, which holds its TRAIN lease."""
    learner = site.learner()
    lease = await learner.ask(wait_s=10.0)
    assert lease.HasField("inspect"), lease
    await learner.complete(inspect=pod_pb2.InspectResult(description=description))
    assert (await learner.ask(wait_s=10.0)).HasField("train")
    return learner


async def train(
    site: Any, description: environment_pb2.EnvironmentDescription, score: float
) -> pod_pb2.Lease:
    """A whole generation without its contest; its TRAIN lease."""
    learner = await begin(site, description)
    lease = learner.lease
    await learner.complete(train=learner.train_result(steps=30, score=score))
    await learner.confirm(score)
    return lease


async def contest(site: Any, child: str, champion: float, challenger: float) -> list[pod_pb2.Lease]:
    """Both evaluations of a generation's contest."""
    learner, found = site.learner(), []
    for _ in range(2):
        lease = await learner.ask(wait_s=10.0)
        assert lease is not None and lease.HasField("evaluate"), lease
        is_challenger = lease.evaluate.policies[0].agent.startswith(f"{child}/")
        await learner.complete(
            evaluate=learner.evaluate_result(challenger if is_challenger else champion)
        )
        found.append(lease)
    return found


async def history(site: Any, count: int, job: str = TRADER) -> list[service_pb2.Promotion]:
    """The decisions once there are `count`, newest first."""
    for _ in range(3000):
        answer = await site.jobs.ListPromotions(job=job)
        if len(answer.promotions) >= count:
            return list(answer.promotions)
        await asyncio.sleep(0.02)
    raise AssertionError(answer)


async def aliases(site: Any, count: int) -> list[leaderboard_pb2.SetAliasRequest]:
    """What the leaderboard was told, once it has heard of `count` changes.

    After a crash the outbox may tell one again, with the same request id: the leaderboard changes
    nothing then."""
    for _ in range(3000):
        heard = site.board.heard(leaderboard_pb2.SetAliasRequest)
        found = list({request.request_id: request for request in heard}.values())
        if len(found) >= count:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(found)


async def kinds(site: Any, job: str) -> list[str]:
    answer = await site.jobs.ListEvents(job=job, page_size=1000)
    return [event.kind for event in answer.events]


async def children(site: Any) -> list[job_pb2.Job]:
    answer = await site.jobs.ListJobs()
    return [job for job in answer.jobs if job.parent]
