"""Continuous jobs: one generation after the other, contests, promotions and rollbacks, whatever
dies in between."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3

import pytest

from podracer.common.v1 import cohort_pb2, environment_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.errors import InvalidInput, NotFound, PreconditionFailed
from support.errors import raises
from support.generations import (
    FAILED,
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
    kinds,
    train,
    upload,
)


async def test_generations_contests_promotions_and_rollbacks(site, description):
    await upload(site, b"2018")
    job = await create(site, contest={"split": "test"})
    assert (job.state, job.continuous_status.generation) == (job_pb2.JOB_STATE_RUNNING, 0)
    first = await train(site, description, score=10.0)
    (promotion,) = await history(site, 1)
    assert (promotion.decision, promotion.generation, promotion.job) == (PROMOTED, 1, f"{TRADER}-1")
    assert promotion.challenger.mean == 10.0 and not promotion.HasField("champion")
    assert promotion.data_sha256 == hashlib.sha256(b"2018").hexdigest()
    (told,) = await aliases(site, 1)
    assert (told.leaderboard, told.alias) == ("projects/default/leaderboards/trader", "champion")
    assert (told.agent, told.checkpoint) == (promotion.policy.agent, promotion.policy.checkpoint)
    assert told.agent == first.train.cohort.members[0].name

    assert [child.generation for child in await children(site)] == [1], "nothing has changed"
    await upload(site, b"2018, 2019")
    second = await train(site, description, score=20.0)
    assert second.job == f"{TRADER}-2"
    environment = second.train.cohort.environment
    assert environment.data["table"].sha256 == hashlib.sha256(b"2018, 2019").hexdigest()
    founders = site.board.boards["projects/default/leaderboards/trader-2"].founders
    assert [founder.agent for founder in founders] == [told.agent]
    assert (
        founders[0].checkpoint.prefix == told.checkpoint.prefix and founders[0].algorithm == "ppo"
    )

    leases = await contest(site, f"{TRADER}-2", champion=15.0, challenger=18.0)
    for lease in leases:
        assert dict(lease.evaluate.environment.kwargs) == {"split": "test", "fee": 0.5}
        assert lease.evaluate.environment.data["table"] == environment.data["table"]
    assert leases[0].evaluate.seeds == leases[1].evaluate.seeds
    newest = (await history(site, 2))[0]
    assert (newest.decision, newest.champion.mean, newest.challenger.mean) == (PROMOTED, 15.0, 18.0)
    assert newest.policy.agent == second.train.cohort.members[0].name

    await upload(site, b"2018, 2019, 2020")
    await train(site, description, score=30.0)
    await contest(site, f"{TRADER}-3", champion=16.0, challenger=16.0)
    kept = (await history(site, 3))[0]
    assert (kept.decision, kept.policy) == (KEPT, newest.policy)
    assert "16 against the champion's 16" in kept.reason
    assert (await site.job(TRADER)).continuous_status.champion_generation == 2

    best = await site.artifacts.GetArtifact(name=f"{TRADER}/checkpoints/best")
    assert best.artifact.uri == newest.policy.checkpoint.prefix

    back = (await site.jobs.RollbackPolicy(job=TRADER)).promotion
    assert (back.decision, back.policy) == (ROLLED_BACK, promotion.policy)
    assert [each.checkpoint.prefix for each in await aliases(site, 3)] == [
        each.policy.checkpoint.prefix for each in (promotion, newest, back)
    ]
    with raises(PreconditionFailed, "NO_FORMER_POLICY"):
        await site.jobs.RollbackPolicy(job=TRADER)
    assert len(await children(site)) == 3, (
        "a rollback begins nothing, and what was rolled back from stays away"
    )

    await upload(site, b"2021")
    await begin(site, description)
    founders = site.board.boards["projects/default/leaderboards/trader-4"].founders
    assert founders[0].agent == told.agent
    assert newest.policy.agent not in [each.agent for each in founders], "it was rolled back from"
    events = await kinds(site, TRADER)
    assert [
        kind
        for kind in events
        if kind in ("CHAMPION_PROMOTED", "CHALLENGER_LOST", "CHAMPION_ROLLED_BACK")
    ] == [
        "CHAMPION_PROMOTED",
        "CHAMPION_PROMOTED",
        "CHALLENGER_LOST",
        "CHAMPION_ROLLED_BACK",
    ]


async def test_a_margin_is_kept(site, description):
    await upload(site, b"1")
    await create(site, margin=3.0)
    await train(site, description, score=10.0)
    await history(site, 1)
    await upload(site, b"2")
    await train(site, description, score=10.0)
    await contest(site, f"{TRADER}-2", champion=10.0, challenger=13.0)
    assert (await history(site, 2))[0].decision == KEPT


async def test_a_change_during_a_generation_is_taken_up_after_it(site, description):
    await upload(site, b"1")
    await create(site)
    learner = await begin(site, description)
    await upload(site, b"2")
    await upload(site, b"3")
    await asyncio.sleep(0.1)
    assert len(await children(site)) == 1
    await learner.complete(train=learner.train_result(steps=30, score=1.0))
    await learner.confirm(1.0)
    second = await begin(site, description)
    environment = second.lease.train.cohort.environment
    assert environment.data["table"].sha256 == hashlib.sha256(b"3").hexdigest()


async def test_a_generation_that_fails_leaves_the_champion(site, description):
    await upload(site, b"1")
    await create(site)
    await train(site, description, score=10.0)
    await history(site, 1)
    await upload(site, b"2")
    learner = site.learner()
    assert (await learner.ask(wait_s=10.0)).HasField("inspect")
    await learner.complete(
        problem=cohort_pb2.Problem(reason="USER_CODE_FAILED", message="no such column")
    )
    failed, promoted = await history(site, 2)
    assert (failed.decision, failed.policy) == (FAILED, promoted.policy)
    assert "no such column" in failed.reason
    assert "GENERATION_FAILED" in await kinds(site, TRADER)
    await upload(site, b"3")
    assert (await begin(site, description)).lease.job == f"{TRADER}-3"


async def test_every_crash_point_neither_doubles_nor_loses_a_generation(site, description):
    """The server dies after each step; what it had not heard of, another one does."""

    async def crash():
        await site.restart()

    await upload(site, b"1")
    await create(site)
    await crash()
    learner = await begin(site, description)
    await learner.complete(train=learner.train_result(steps=30, score=1.0))
    await learner.confirm(1.0)
    await crash()
    await history(site, 1)
    await crash()
    await upload(site, b"2")
    await crash()
    await train(site, description, score=2.0)
    await crash()
    learner = site.learner()
    lease = await learner.ask(wait_s=10.0)
    await learner.complete(evaluate=learner.evaluate_result(5.0))
    await crash()
    learner = site.learner()
    other = await learner.ask(wait_s=10.0)
    assert {each.evaluate.policies[0].agent.split("/")[3] for each in (lease, other)} == {
        "trader-1",
        "trader-2",
    }
    assert list(lease.evaluate.seeds) == list(other.evaluate.seeds)
    await learner.complete(evaluate=learner.evaluate_result(5.0))
    await crash()
    assert [each.decision for each in await history(site, 2)] == [KEPT, PROMOTED]
    assert [child.generation for child in await children(site)] == [2, 1]
    assert len(await aliases(site, 1)) == 1


async def test_cancelling_and_deleting_take_the_generations_along(site, description):
    await upload(site, b"1")
    job = await create(site)
    await train(site, description, score=10.0)
    await history(site, 1)
    delete = site.client.jobs.DeleteJob
    with raises(PreconditionFailed, "JOB_NOT_ENDED"):
        await delete(service_pb2.DeleteJobRequest(name=TRADER))
    with raises(PreconditionFailed, "CHECKPOINT_IN_USE", match=f"^{TRADER} needs"):
        await delete(service_pb2.DeleteJobRequest(name=f"{TRADER}-1"))
    await upload(site, b"2")
    await begin(site, description)
    await site.jobs.CancelJob(name=TRADER)
    assert {child.state for child in await children(site)} == {
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_STATE_CANCELLED,
    }
    await delete(service_pb2.DeleteJobRequest(name=TRADER))
    assert await children(site) == []
    with pytest.raises(NotFound):
        await site.job(TRADER)
    assert not list(site.store.list("projects/default/jobs/"))
    with sqlite3.connect(site.folder / "orchestrator.sqlite") as database:
        for table in ("jobs", "promotions", "continuations", "works", "job_files"):
            assert database.execute(f"select count(*) from {table}").fetchone() == (0,), table
    assert job.uid


async def test_suspending_holds_the_generation_and_the_next_one(site, description):
    await upload(site, b"1")
    await create(site)
    await begin(site, description)
    await site.jobs.UpdateJob(name=TRADER, suspend=True)
    assert (await site.job(f"{TRADER}-1")).state == job_pb2.JOB_STATE_SUSPENDED
    await site.jobs.UpdateJob(name=TRADER, suspend=False)
    assert (await site.job(f"{TRADER}-1")).state == job_pb2.JOB_STATE_RUNNING
    assert (await site.job(TRADER)).state == job_pb2.JOB_STATE_RUNNING


async def test_an_ordinary_job_promotes_its_best_an_agent_or_a_checkpoint(site):
    job = await site.create(objective=STEPS, evolution=ONE)
    promote = site.client.jobs.PromotePolicy
    with raises(PreconditionFailed, "NO_CANDIDATE"):
        await promote(service_pb2.PromotePolicyRequest(job=job.name))
    learner = site.learner()
    lease = await learner.ask()
    await learner.commit(steps=10)
    await learner.complete(train=learner.train_result(steps=30, score=7.0))
    await learner.confirm(7.0)
    await site.ended(job)
    agent = lease.train.cohort.members[0].name
    request = service_pb2.PromotePolicyRequest(job=job.name, reason="looks good", request_id="r")
    best = (await promote(request)).promotion
    assert (best.policy.agent, best.challenger.mean, best.alias) == (agent, 7.0, "champion")
    assert (await promote(request)).promotion == best, "the same request again changes nothing"
    of_agent = (
        await promote(service_pb2.PromotePolicyRequest(job=job.name, policy=agent, alias="other"))
    ).promotion
    assert of_agent.policy.checkpoint.prefix == best.policy.checkpoint.prefix
    early = f"{agent}/checkpoints/10-{lease.fence}"
    other = (await promote(service_pb2.PromotePolicyRequest(job=job.name, policy=early))).promotion
    assert other.policy.checkpoint.env_steps == 10
    assert len(await aliases(site, 3)) == 3
    with pytest.raises(NotFound):
        await promote(service_pb2.PromotePolicyRequest(job=job.name, policy=f"{agent}9"))
    with pytest.raises(NotFound):
        await promote(
            service_pb2.PromotePolicyRequest(job=job.name, policy=f"{agent}/checkpoints/11-1")
        )
    with pytest.raises(InvalidInput, match="another project"):
        elsewhere = agent.replace("default", "elsewhere")
        await promote(service_pb2.PromotePolicyRequest(job=job.name, policy=elsewhere))
    with pytest.raises(InvalidInput, match="DNS label"):
        await promote(service_pb2.PromotePolicyRequest(job=job.name, alias="A B"))


async def test_an_ordinary_job_gets_what_a_data_set_stands_for_when_it_is_created(site):
    environment = environment_pb2.EnvironmentSpec(entry_point="a:B")
    with raises(InvalidInput, "NOT_UPLOADED"):
        await site.create(environment=environment, data_sets={"table": "china"})
    await upload(site, b"1")
    job = await site.create(environment=environment, data_sets={"table": "china"})
    await upload(site, b"2")
    assert (await site.job(job.name)).spec.data["table"].sha256 == hashlib.sha256(b"1").hexdigest()


async def test_founders_have_to_be_committed_checkpoints(site):
    founder = evolution_pb2.Founder(agent=f"{TRADER}/agents/a1", algorithm="ppo")
    founder.checkpoint.prefix = "projects/default/jobs/u/agents/a1/checkpoints/1-1/"
    with raises(InvalidInput, "INVALID_FOUNDER"):
        await site.create(founders=[founder])


async def test_what_an_alias_points_at_is_not_collected(site):
    await site.restart(collect_after=0.0)
    job = await site.create(objective=STEPS, evolution=ONE)
    learner = site.learner()
    lease = await learner.ask()
    agent = lease.train.cohort.members[0].name
    await learner.commit(steps=10)
    await learner.commit(steps=20)
    await learner.complete(train=learner.train_result(steps=30, score=7.0))
    await learner.confirm(7.0)
    other = await site.create(display_name="other", objective=STEPS, evolution=ONE)
    early = f"{agent}/checkpoints/10-{lease.fence}"
    await site.jobs.PromotePolicy(job=other.name, policy=early)
    await aliases(site, 1)
    site.board.retired, site.board.alias_changes = {agent}, []
    collect = site.client.jobs.CollectCheckpoints
    collected = (await collect(service_pb2.CollectCheckpointsRequest())).prefixes
    assert [prefix.split("/")[-2] for prefix in collected] == [f"20-{lease.fence}"]
    delete = site.client.jobs.DeleteJob
    with raises(PreconditionFailed, "CHECKPOINT_IN_USE", match=f"^{other.name} needs"):
        await delete(service_pb2.DeleteJobRequest(name=job.name))
