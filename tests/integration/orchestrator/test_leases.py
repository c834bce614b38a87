"""Leases over the wire: long polls, replays, fences, tokens, expiry."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
import uuid

import pytest

from podracer.common.v1 import agent_pb2, cohort_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import (
    DataCorrupted,
    Fenced,
    InvalidInput,
    PermissionRefused,
    PreconditionFailed,
    Unauthenticated,
)
from podracer_platform.rpc import bearer
from support.errors import raises

UNLIMITED = evolution_pb2.Objective(target_return=475.0)


async def test_a_waiting_pod_gets_work_the_moment_a_job_comes(site):
    learner = site.learner()
    waiting = asyncio.create_task(learner.ask(wait_s=10))
    await asyncio.sleep(0.3)
    await site.create()
    lease = await waiting
    assert lease.WhichOneof("work") == "train"


async def test_nothing_to_do_answers_empty_after_the_wait(site):
    begun = time.monotonic()
    assert await site.learner().ask(wait_s=0.3) is None
    assert time.monotonic() - begun > 0.25


async def test_the_same_request_gets_the_same_lease_and_another_gets_another(site):
    await site.create(pod=job_pb2.PodShape(members=1, max_count=4), objective=UNLIMITED)
    learner, request_id = site.learner(), uuid.uuid4().hex
    first, again = (
        await learner.ask(request_id=request_id),
        await learner.ask(request_id=request_id),
    )
    assert first == again
    other = await site.learner("projects/default/pods/y").ask()
    assert other.fence > first.fence
    assert {member.name for member in other.train.cohort.members}.isdisjoint(
        member.name for member in first.train.cohort.members
    )


async def test_of_many_pods_that_ask_at_once_each_looks_three_times_at_most(site, monkeypatch):
    await site.create(
        pod=job_pb2.PodShape(members=1, min_count=1, max_count=12),
        objective=UNLIMITED,
        evolution=evolution_pb2.Evolution(population=12),
    )
    dispatcher, looks = site.server.orchestrator.dispatcher, []
    find = dispatcher._find
    monkeypatch.setattr(
        dispatcher,
        "_find",
        lambda session, ask, *rest: looks.append(ask.report.name) or find(session, ask, *rest),
    )
    learners = [site.learner(f"projects/default/pods/pod-{index}") for index in range(12)]
    leases = await asyncio.gather(*(learner.ask(wait_s=20) for learner in learners))
    assert len({lease.train.cohort.members[0].name for lease in leases}) == 12
    assert len(looks) <= 3 * 12, "else work grows with the square of the pods"


async def test_a_pod_that_asks_anew_gives_up_what_it_held(site):
    await site.create()
    learner = site.learner()
    old = await learner.ask()
    new = await learner.ask()
    assert new.fence > old.fence
    assert [member.name for member in new.train.cohort.members] == [
        member.name for member in old.train.cohort.members
    ]
    with pytest.raises(Fenced):
        await learner.renew(lease=old)
    with pytest.raises(Fenced):
        await learner.ask(request_id="")
        await learner.commit(steps=1, lease=old)


async def test_an_expired_lease_is_taken_up_by_another_pod_from_the_last_commit(site):
    await site.stop()
    await site.start(lease_term=2.0)
    job = await site.create()
    frozen = site.learner("projects/default/pods/frozen")
    lease = await frozen.ask()
    await frozen.commit(steps=100)
    await frozen.renew(steps=150)

    other = site.learner("projects/default/pods/other")
    taken = await other.ask(wait_s=20)
    assert taken.fence > lease.fence
    assert [member.resume.env_steps for member in taken.train.cohort.members] == [100, 100]
    assert [member.env_steps for member in taken.train.cohort.members] == [100, 100]
    assert (
        0
        < taken.train.budget.time.ToTimedelta().total_seconds()
        < lease.train.budget.time.ToTimedelta().total_seconds()
    )

    # The zombie wakes up: nothing that it does changes anything.
    for call in (
        frozen.renew(steps=999),
        frozen.commit(steps=999),
        frozen.complete(train=frozen.train_result(steps=999, score=500.0)),
        frozen.release(),
    ):
        with pytest.raises(Fenced):
            await call
    assert (await site.job(job.name)).progress.env_steps == 200
    assert not site.board.submissions
    assert not site.board.evaluations
    await other.complete(train=other.train_result(steps=50))
    assert (await site.job(job.name)).progress.env_steps == 300


async def test_replayed_calls_change_nothing(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    await learner.commit(steps=100)
    await learner.commit(steps=100)
    await learner.commit(steps=40)  # an older one, late
    assert (await site.job(job.name)).progress.env_steps == 200
    result = learner.train_result(steps=120, score=10.0)
    await learner.complete(train=result)
    await learner.complete(train=result)
    done = await site.job(job.name)
    assert (done.progress.env_steps, done.progress.completed_rounds) == (240, 1)
    with pytest.raises(Fenced):
        await learner.commit(steps=130)


async def test_a_lease_token_admits_only_its_own_lease(site):
    await site.create(pod=job_pb2.PodShape(members=1, max_count=4), objective=UNLIMITED)
    one, two = site.learner(), site.learner("projects/default/pods/y")
    mine, other = await one.ask(), await two.ask()
    request = pod_pb2.RenewLeaseRequest(lease=other.name, fence=other.fence)
    with pytest.raises(PermissionRefused):
        await site.client.pods.RenewLease(request, metadata=bearer(mine.token))
    with pytest.raises(PermissionRefused):  # the pod's own token is not enough
        await site.client.pods.RenewLease(request)
    with pytest.raises(Unauthenticated):
        await site.client.pods.RenewLease(request, metadata=bearer(other.token[:-2] + "xx"))
    with pytest.raises(PermissionRefused):  # and a lease token leases nothing
        await site.client.pods.LeaseWork(one.lease_request(), metadata=bearer(mine.token))


async def test_another_key_of_lease_tokens_ends_every_lease(site):
    await site.create()
    learner = site.learner()
    former = await learner.ask()
    await learner.commit(steps=10)
    await site.stop()
    with (
        contextlib.closing(sqlite3.connect(site.folder / "orchestrator.sqlite")) as database,
        database,
    ):
        assert database.execute("DELETE FROM settings WHERE name = 'lease_secret'").rowcount == 1
    await site.start()
    learner.pods = site.client.pods
    with pytest.raises(Unauthenticated):
        await learner.renew()
    assert (await learner.ask()).fence > former.fence
    assert learner.lease.train.cohort.members[0].resume.env_steps == 10


async def test_a_checkpoint_must_be_there_and_lie_in_its_own_place(site):
    await site.create()
    learner = site.learner()
    lease = await learner.ask()
    agent = lease.train.cohort.members[0]
    good = learner.member(agent, 10)

    async def commit(**changes):
        reference = agent_pb2.CheckpointReference()
        reference.CopyFrom(good.checkpoint)
        for name, value in changes.items():
            setattr(reference, name, value)
        member = pod_pb2.MemberCheckpoint(progress=good.progress, checkpoint=reference)
        request = pod_pb2.CommitCheckpointRequest(
            lease=lease.name, fence=lease.fence, members=[member]
        )
        await site.client.pods.CommitCheckpoint(request, metadata=bearer(lease.token))

    with pytest.raises(DataCorrupted):
        await commit(manifest_sha256="0" * 64)
    with pytest.raises(DataCorrupted):
        await commit(prefix=good.checkpoint.prefix.replace("/10-", "/11-"))
    other = lease.train.cohort.members[1]
    with pytest.raises(InvalidInput):  # another agent's folder
        checkpoint = learner.checkpoint(other.name, 10)
        await commit(prefix=checkpoint.prefix, manifest_sha256=checkpoint.manifest_sha256)
    assert (await site.job(lease.job)).progress.env_steps == 0
    await commit()
    assert (await site.job(lease.job)).progress.env_steps == 10


async def test_work_that_is_handed_back_for_a_reason_again_and_again_fails_the_job(site):
    job = await site.create()
    learner = site.learner()
    for _ in range(15):
        assert (await learner.ask()).WhichOneof("work") == "train"
        await learner.release(reason="WORKER_LOST", message="no worker answers")
    failed = await site.job(job.name)
    assert failed.state == job_pb2.JOB_STATE_FAILED
    assert failed.problem.reason == "WORKER_LOST"
    await asyncio.sleep(0.2)
    assert [submission.failure for submission in site.board.submissions.values()] == [
        "no worker answers"
    ] * 6


async def test_work_handed_back_by_a_pod_that_stops_is_simply_free_again(site):
    await site.create()
    learner = site.learner()
    fences = []
    for _ in range(7):
        fences.append((await learner.ask()).fence)
        await learner.release(reason="DRAINING")
    assert len(set(fences)) == 7
    assert (await site.job(learner.lease.job)).state == job_pb2.JOB_STATE_RUNNING


async def test_a_build_too_far_away_is_refused(site):
    request = site.learner().lease_request()
    request.build.CopyFrom(cohort_pb2.BuildInfo(version="9.0.0"))
    with pytest.raises(PreconditionFailed, match=r"9\.0\.0"):
        await site.client.pods.LeaseWork(request)


@pytest.mark.parametrize("speed", [1e-300, 0.0, -1.0, float("nan"), float("inf")])
async def test_no_speed_of_a_pod_keeps_others_from_seeing_the_job(site, speed):
    job = await site.create(objective=evolution_pb2.Objective(max_env_steps=10**9))
    learner = site.learner()
    lease = await learner.ask()
    request = pod_pb2.RenewLeaseRequest(
        lease=lease.name, fence=lease.fence, env_steps_per_second=speed
    )
    if 0.0 <= speed < float("inf"):
        await learner.pods.RenewLease(request, metadata=bearer(lease.token))
    else:
        with raises(InvalidInput, field="env_steps_per_second"):
            await learner.pods.RenewLease(request, metadata=bearer(lease.token))
    assert not (await site.job(job.name)).progress.HasField("eta")


async def test_renew_tells_pods_of_an_ended_job_to_hand_it_back(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    assert await learner.renew() == pod_pb2.LEASE_ACTION_CONTINUE
    await site.jobs.CancelJob(name=job.name)
    assert await learner.renew() == pod_pb2.LEASE_ACTION_RELEASE
    await learner.complete(train=learner.train_result(steps=5))  # still welcome
    done = await site.job(job.name)
    assert (done.state, done.progress.env_steps) == (job_pb2.JOB_STATE_CANCELLED, 10)


async def test_an_order_comes_between_renewals(site):
    job = await site.create()
    learner = site.learner()
    lease = await learner.ask()
    request = pod_pb2.WatchLeaseRequest(lease=lease.name, fence=lease.fence)
    call = learner.pods.WatchLease(request, metadata=bearer(lease.token))
    heard = aiter(call)
    assert (await anext(heard)).action == pod_pb2.LEASE_ACTION_CONTINUE
    await site.jobs.CancelJob(name=job.name)
    assert (await anext(heard)).action == pod_pb2.LEASE_ACTION_RELEASE
    await site.stop()  # the stream ends at once, though the lease lives on
    with pytest.raises(StopAsyncIteration):
        await anext(heard)


async def test_evaluations_come_with_renewals_and_are_recorded_once(site, make_evaluation):
    await site.create()
    learner = site.learner()
    lease = await learner.ask()
    progress = make_evaluation(lease.train.cohort.members[0].name, 20.0, episodes=8)
    progress.purpose = agent_pb2.EVALUATION_PURPOSE_PROGRESS
    await learner.renew(evaluations=[progress])
    await learner.renew(evaluations=[progress])
    await learner.complete(train=learner.train_result(steps=5))
    await learner.ask()
    assert list(site.board.evaluations) == [progress.evaluation_id]


async def test_a_renewal_brings_the_score_that_the_jobs_last_cohort_has_to_reach(site):
    await site.create(pod=job_pb2.PodShape(members=1, max_count=4), objective=UNLIMITED)
    first = await site.learner().ask()
    request = pod_pb2.RenewLeaseRequest(lease=first.name, fence=first.fence)
    renewed = await site.client.pods.RenewLease(request, metadata=bearer(first.token))
    assert not renewed.HasField("admission_score")
    site.board.admission_score = 5.0
    second = await site.learner("projects/default/pods/y").ask()
    renewed = await site.client.pods.RenewLease(request, metadata=bearer(first.token))
    assert (second.train.admission_score, renewed.admission_score) == (5.0, 5.0)


async def test_the_next_work_is_for_the_pod_whose_lease_it_was(site):
    await site.create()
    learner, other = site.learner(), site.learner("projects/other/pods/y")
    await learner.ask()
    with raises(PermissionRefused, "WRONG_POD"):
        await learner.complete(train=learner.train_result(steps=10), next=other.lease_request())
    answer = await learner.complete(
        train=learner.train_result(steps=10), next=learner.lease_request()
    )
    assert answer.next.WhichOneof("work") == "train"
