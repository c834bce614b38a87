"""A pod with a token and a lease that lies: what it may change is its own work, and that is counted
once.

PODRACER_FUZZ says how many lies; `make fuzz` has many.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from typing import Any

import pytest

from podracer.common.v1 import cohort_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2, pod_service_pb2
from podracer_platform.rpc import bearer
from support.random_messages import RandomMessages
from support.random_requests import COUNT, Requests

METHODS = pod_service_pb2.DESCRIPTOR.services_by_name["PodService"].methods_by_name
PARTS = {
    "pod": job_pb2.PodShape(members=2, max_count=2),
    "objective": evolution_pb2.Objective(max_env_steps=1_000_000_000),
}


def honest(learner: Any, kind: str, steps: int) -> Any:
    """What an honest pod would say."""
    lease = learner.lease
    request = getattr(pod_service_pb2, f"{kind}Request")(lease=lease.name, fence=lease.fence)
    if kind == "ReleaseLease":
        request.reason.CopyFrom(cohort_pb2.Problem(reason="DRAINING", message="why"))
    elif kind == "RenewLease":
        result = learner.train_result(steps, 1.0)
        request.members.extend(member.final.progress for member in result.members)
        request.evaluations.extend(member.candidate for member in result.members)
    elif kind == "CommitCheckpoint":
        request.members.extend(member.final for member in learner.train_result(steps).members)
    else:
        request.train.CopyFrom(learner.train_result(steps, 1.0))
    return request


def claimed(request: Any) -> dict[str, int]:
    """By agent, the steps that an accepted request has committed."""
    if isinstance(request, pod_service_pb2.CommitCheckpointRequest):
        members = list(request.members)
    else:
        results = getattr(request, "train", pod_service_pb2.TrainResult()).members
        members = [result.final for result in results if result.HasField("final")]
    found: dict[str, int] = defaultdict(int)
    for member in members:
        found[member.progress.agent] = max(found[member.progress.agent], member.progress.env_steps)
    return found


@pytest.mark.timeout(7200)
async def test_a_pod_that_lies_changes_only_its_own_work(site):
    requests = Requests(random.Random(int(os.environ.get("PODRACER_FUZZ_SEED", "4"))), ())
    chance = requests.chance
    site.board.round_env_steps = 10_000
    ask = job_service_pb2.CreateJobRequest(
        parent="projects/other", spec=(await site.create(**PARTS)).spec
    )
    first = site.learner("projects/default/pods/first")
    victim = site.learner("projects/other/pods/victim")
    await first.ask()  # of the first job, whose places are taken from here on
    other = (await site.client.jobs.CreateJob(ask)).job
    while (await victim.ask()).job != other.name:
        victim = site.learner(f"{victim.name}x")
    await victim.commit(10)
    untouched = (await site.job(other.name)).progress.env_steps
    theirs = [agent.name for agent in victim.lease.train.cohort.members]
    liar = site.learner("projects/default/pods/liar")
    job, steps, former, counted, base = None, 0, [], defaultdict(int), {}
    for _ in range(COUNT // 5):
        if liar.lease is None or not liar.lease.HasField("train"):
            if await liar.ask(0.3) is None:
                await site.create(**PARTS)
                await liar.ask(5.0)
            if liar.lease is None or not liar.lease.HasField("train"):
                continue
            if liar.lease.job != job:
                job, counted = liar.lease.job, defaultdict(int, await _steps(site, liar.lease.job))
            steps = 0
            base = {agent.name: agent.env_steps for agent in liar.lease.train.cohort.members}
        lease = liar.lease
        steps += chance.randint(1, 100)
        kind = chance.choice(
            ["RenewLease", "CommitCheckpoint", "CommitCheckpoint", "CompleteWork", "ReleaseLease"]
        )
        request = honest(liar, kind, steps)
        luck = chance.random()
        texts = [
            *theirs,
            other.name,
            victim.lease.name,
            f"projects/other/jobs/{other.uid}/agents/a1/checkpoints/10-1/",
        ]
        if luck < 0.6:
            RandomMessages(chance, texts).mutate(request)
        elif luck < 0.8 and former:
            kind, request = chance.choice(former)
        former.append((kind, request))
        answer = await requests.send(site.pod_channel, METHODS[kind], request, bearer(lease.token))
        is_mine = (request.lease, request.fence) == (lease.name, lease.fence)
        if answer is not None and is_mine:
            for agent, told in claimed(request).items():
                assert agent in base, f"{agent} is no agent of this lease: {request}"
                counted[agent] = max(counted[agent], base[agent] + told)
        if answer is not None and is_mine and kind in ("CompleteWork", "ReleaseLease"):
            liar.lease, former = None, former[-20:]
        assert (await site.job(job)).progress.env_steps == sum(counted.values()), (
            f"{kind}: {request}"
        )
    after = await site.job(other.name)
    assert (after.progress.env_steps, after.state) == (untouched, job_pb2.JOB_STATE_RUNNING)
    submitted = {each.agent for each in site.board.heard(leaderboard_pb2.SubmitCandidateRequest)}
    evaluated = {each.agent for each in site.board.evaluations.values()}
    assert not (submitted | evaluated) & set(theirs)
    assert not site.server.orchestrator.failed.done()
    requests.assert_bounded()


async def _steps(site: Any, job: str) -> dict[str, int]:
    """What the job has counted before this pod came: under one name, as no agent has it."""
    return {"": (await site.job(job)).progress.env_steps}
