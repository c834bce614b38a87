"""Data sets that change, generations, promotions and rollbacks with the state in a real PostgreSQL
server."""

from __future__ import annotations

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.errors import PreconditionFailed
from podracer_orchestrator.jobs import submission
from support.errors import raises
from support.generations import (
    KEPT,
    ONE,
    PROMOTED,
    ROLLED_BACK,
    STEPS,
    TRADER,
    aliases,
    begin,
    children,
    contest,
    create,
    history,
    train,
    upload,
)
from support.old_database import at_revision, insert


async def test_generations_and_rollbacks_after_every_crash(site, description, postgresql):
    database = postgresql.create_database("generations")

    async def crash():
        await site.restart(database=database)

    await crash()
    await upload(site, b"1")
    await create(site)
    await crash()
    await train(site, description, score=10.0)
    (first,) = await history(site, 1)
    await crash()
    await upload(site, b"1, 2")
    await crash()
    learner = await begin(site, description)
    assert learner.lease.train.cohort.environment.data["table"].size_bytes == 4
    await upload(site, b"1, 2, 3")
    await learner.complete(train=learner.train_result(steps=30, score=20.0))
    await learner.confirm(20.0)
    await crash()
    await contest(site, f"{TRADER}-2", champion=1.0, challenger=2.0)
    await crash()
    won = (await history(site, 2))[0]
    assert (won.decision, won.champion.mean, won.challenger.mean) == (PROMOTED, 1.0, 2.0)
    await train(site, description, score=5.0)
    await contest(site, f"{TRADER}-3", champion=2.0, challenger=1.0)
    kept = (await history(site, 3))[0]
    assert (kept.decision, kept.policy) == (KEPT, won.policy)
    request = service_pb2.RollbackPolicyRequest(job=TRADER, request_id="r")
    back = (await site.client.jobs.RollbackPolicy(request)).promotion
    await crash()
    assert (back.decision, back.policy) == (ROLLED_BACK, first.policy)
    same = (await site.client.jobs.RollbackPolicy(request)).promotion
    assert same == back, "the same request again changes nothing"
    with raises(PreconditionFailed, "NO_FORMER_POLICY"):
        await site.jobs.RollbackPolicy(job=TRADER)
    told = [each.checkpoint.prefix for each in await aliases(site, 3)]
    assert told[-1] == first.policy.checkpoint.prefix
    assert [each.position for each in await history(site, 4)] == [4, 3, 2, 1]
    assert [child.generation for child in await children(site)] == [3, 2, 1]
    await site.jobs.CancelJob(name=TRADER)
    await site.jobs.DeleteJob(name=TRADER)
    assert await children(site) == []


async def test_a_job_from_before_there_were_continuous_ones_promotes_its_best(
    site, make_spec, postgresql
):
    """The migration keeps what is there, and adds what is new."""
    await site.stop()
    url = postgresql.create_database("former")
    spec = submission.checked(make_spec(objective=STEPS, evolution=ONE)).SerializeToString()
    with at_revision(url, "r0009") as connection:
        job = {"uid": "u", "project": "default", "job_id": "old", "state": "RUNNING", "spec": spec}
        insert(connection, "jobs", **job, env_steps=0, cost_s=0.0, active_time_s=0.0)
    await site.restart(database=url)
    found = await site.job("projects/default/jobs/old")
    assert (found.state, found.parent, found.HasField("continuous_status")) == (
        job_pb2.JOB_STATE_RUNNING,
        "",
        False,
    )
    answer = await site.jobs.ListPromotions(job=found.name)
    assert list(answer.promotions) == []
    assert site.board.heard(leaderboard_pb2.SetAliasRequest) == []
    job = await site.create(objective=STEPS, evolution=ONE)
    learner = site.learner()
    while not (lease := await learner.ask(wait_s=10.0)).HasField("train") or lease.job != job.name:
        await learner.release()
    await learner.complete(train=learner.train_result(steps=30, score=7.0))
    await learner.confirm(7.0)
    await site.ended(job)
    promoted = (await site.jobs.PromotePolicy(job=job.name)).promotion
    assert (promoted.decision, promoted.challenger.mean) == (PROMOTED, 7.0)
