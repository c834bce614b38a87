"""The last training of a job: whom and on what, that it is killed without harm, and never in the
way of the end."""

from __future__ import annotations

import asyncio

import pytest

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import InvalidInput
from podracer_orchestrator.jobs import known_description

CARTPOLE = known_description(job_pb2.JobSpec(environment={"id": "CartPole-v1"}))
ONE = evolution_pb2.Evolution(population=1, leaderboard_size=1)
STEPS = evolution_pb2.Objective(max_env_steps=10)
COPY, FRESH = agent_pb2.INITIALIZATION_KIND_COPY, agent_pb2.INITIALIZATION_KIND_FRESH


def retrain(**fields):
    message = job_pb2.Retrain(**fields)
    message.kwargs.update({"sutton_barto_reward": True})
    return message


async def run_out(learner):
    """Have the environments inspected; use the budget up in one round, whose best is confirmed."""
    inspection = (await learner.ask()).inspect
    assert inspection.retrain_environment.kwargs["sutton_barto_reward"]
    assert "sutton_barto_reward" not in inspection.environment.kwargs
    await learner.complete(inspect={"description": CARTPOLE})
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=10, score=30.0))
    await learner.confirm(30.0)


async def last(site, **fields):
    """A job that has begun its last training; the job, its learner, and the work."""
    job = await site.create(evolution=ONE, objective=STEPS, retrain=retrain(**fields))
    learner = site.learner()
    await run_out(learner)
    lease = await learner.ask()
    return job, learner, lease.train


async def test_the_best_is_trained_once_more_and_is_what_the_job_ends_with(site):
    job, learner, work = await last(site)
    best = (await site.job(job.name)).progress.best
    (member,) = work.cohort.members
    assert member.name == f"{best.agent}-retrained"
    assert (member.initialization.kind, member.env_steps) == (COPY, best.checkpoint.env_steps)
    assert [each.checkpoint.prefix for each in member.initialization.parents] == [
        best.checkpoint.prefix
    ]
    assert work.cohort.environment.kwargs["sutton_barto_reward"]
    assert work.sized_for == 1
    assert (work.unjudged, work.follower_count, work.budget.env_steps_per_member) == (True, 0, 10)
    assert not work.budget.HasField("time")
    assert await learner.renew(3) == pod_pb2.LEASE_ACTION_CONTINUE
    await learner.complete(train=learner.train_result(steps=10))
    done = await site.ended(job)
    assert done.outcome == job_pb2.JOB_OUTCOME_BUDGET_USED
    assert (done.retrained.agent, done.retrained.checkpoint.env_steps) == (member.name, 20)
    assert done.progress.env_steps == 20
    assert (await site.kinds(job))[-2:] == ["RETRAINED", "JOB_SUCCEEDED"]
    assert all(call.agent != member.name for call in site.board.submissions.values()), (
        "it is not evaluated"
    )
    found = site.artifacts.Download(name=f"{job.name}/checkpoints/best", paths=["manifest.json"])
    manifest = b"".join([each.data async for each in found])
    assert member.name.encode() in manifest


async def test_from_scratch_for_as_many_steps_as_one_says(site):
    job, learner, work = await last(site, scratch=True, env_steps=7)
    (member,) = work.cohort.members
    assert (member.initialization.kind, len(member.initialization.parents), member.env_steps) == (
        FRESH,
        0,
        0,
    )
    assert work.budget.env_steps_per_member == 7
    await learner.complete(train=learner.train_result(steps=7))
    assert (await site.ended(job)).retrained.checkpoint.env_steps == 7


async def test_who_takes_it_over_goes_on_from_the_last_checkpoint(site):
    job, learner, _ = await last(site)
    await learner.commit(4)
    await learner.release(reason="DRAINED")
    other = site.learner("projects/default/pods/y")
    work = (await other.ask()).train
    (member,) = work.cohort.members
    assert (member.resume.env_steps, work.budget.env_steps_per_member) == (14, 6)
    await other.complete(train=other.train_result(steps=6))
    done = await site.ended(job)
    assert (done.progress.env_steps, done.retrained.checkpoint.env_steps) == (20, 20)


async def test_it_outlives_a_restart_and_a_pause(site):
    job, learner, _ = await last(site)
    await learner.commit(4)
    await site.jobs.UpdateJob(name=job.name, suspend=True)
    assert await learner.renew(5) == pod_pb2.LEASE_ACTION_RELEASE
    await learner.release(reason="SUSPENDED")
    await site.restart()
    learner.pods = site.client.pods
    assert await learner.ask(wait_s=0.2) is None
    await site.jobs.UpdateJob(name=job.name, suspend=False)
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=6))
    assert (await site.ended(job)).retrained.checkpoint.env_steps == 20


@pytest.mark.parametrize("how", ["lost", "problem", "diverged"])
async def test_where_it_fails_the_job_ends_with_its_candidate(site, how):
    job, learner, _ = await last(site)
    if how == "lost":
        for _ in range(5):
            await learner.release(reason="INTERNAL", message="the environment does not start")
            await learner.ask(wait_s=0.5)
    else:
        result = learner.train_result(steps=10)
        if how == "problem":
            result.members[0].problem.message = "the environment has failed"
        else:
            result.members[0].final.progress.failed = True
        await learner.complete(train=result)
    done = await site.ended(job)
    assert (done.outcome, done.HasField("retrained")) == (job_pb2.JOB_OUTCOME_BUDGET_USED, False)
    assert "RETRAINING_FAILED" in await site.kinds(job)
    assert all("retrained" not in call.agent for call in site.board.submissions.values())


async def test_other_weights_than_those_that_were_selected_are_not_trained(site):
    job, learner, work = await last(site)
    (parent,) = work.cohort.members[0].initialization.parents
    site.store.put(f"{parent.checkpoint.prefix}manifest.json", b"junk")
    problem = {
        "reason": "DATA_CORRUPTED",
        "message": "it is damaged",
        "subject": f"{parent.checkpoint.prefix}actor",
    }
    await learner.complete(problem=problem)
    done = await site.ended(job)
    assert not done.HasField("retrained")
    assert "RETRAINING_FAILED" in await site.kinds(job)


async def test_what_comes_after_a_cancellation_changes_nothing(site):
    job, learner, _ = await last(site)
    await site.jobs.CancelJob(name=job.name)
    await learner.complete(train=learner.train_result(steps=10))
    found = await site.job(job.name)
    assert (found.state, found.HasField("retrained")) == (job_pb2.JOB_STATE_CANCELLED, False)
    assert (await site.kinds(job))[-1] == "JOB_CANCELLED"


async def test_it_can_be_promoted_by_its_name_and_by_the_jobs(site):
    job, learner, work = await last(site)
    await learner.complete(train=learner.train_result(steps=10))
    retrained = (await site.ended(job)).retrained
    for policy in ("", work.cohort.members[0].name):
        promotion = (await site.jobs.PromotePolicy(job=job.name, policy=policy)).promotion
        assert promotion.policy.checkpoint.prefix == retrained.checkpoint.prefix


async def test_time_that_is_used_up_does_not_end_it(site):
    objective = evolution_pb2.Objective(max_env_steps=10)
    objective.max_duration.FromMilliseconds(150)
    job = await site.create(evolution=ONE, objective=objective, retrain=retrain())
    learner = site.learner()
    await run_out(learner)
    await learner.ask()
    await asyncio.sleep(0.2)
    assert await learner.renew(3) == pod_pb2.LEASE_ACTION_CONTINUE
    await learner.complete(train=learner.train_result(steps=10))
    assert (await site.ended(job)).HasField("retrained")


async def test_at_the_target_too(site):
    objective = evolution_pb2.Objective(target_return=20.0)
    job = await site.create(evolution=ONE, objective=objective, retrain=retrain())
    learner = site.learner()
    await run_out(learner)
    assert (await learner.ask()).train.unjudged
    await learner.complete(train=learner.train_result(steps=10))
    done = await site.ended(job)
    assert (done.outcome, done.HasField("retrained")) == (job_pb2.JOB_OUTCOME_TARGET_REACHED, True)


async def test_what_cannot_be_is_refused(site):
    message = retrain()
    message.kwargs.update({"gravity": 1.0})
    with pytest.raises(InvalidInput, match=r"retrain\.kwargs\.gravity"):
        await site.create(evolution=ONE, objective=STEPS, retrain=message)
    with pytest.raises(InvalidInput, match=r"retrain\.env_steps"):
        await site.create(evolution=ONE, objective=STEPS, retrain=retrain(env_steps=-1))
