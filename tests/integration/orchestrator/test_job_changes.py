"""What a job is told at its creation, and what becomes of it when its objective changes."""

from __future__ import annotations

import pytest
from google.protobuf import duration_pb2, field_mask_pb2

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import PreconditionFailed

ONE_AGENT = job_pb2.PodShape(members=1)


async def _set_objective(site, job, path, **objective):
    return (
        await site.jobs.UpdateJob(
            name=job.name,
            update_mask=field_mask_pb2.FieldMask(paths=[f"objective.{path}"]),
            spec=job_pb2.JobSpec(objective=evolution_pb2.Objective(**objective)),
        )
    ).job


async def _events(site, job):
    return {event.kind: event.message for event in await site.events(job)}


async def _round(learner, score):
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=10, score=score))


async def test_a_budget_of_less_than_a_round_is_said_in_an_event(site, make_spec):
    spec = make_spec()
    spec.objective.max_duration.CopyFrom(duration_pb2.Duration(seconds=2))
    spec.evolution.ClearField("round_env_steps")
    spec.evolution.round_time.CopyFrom(duration_pb2.Duration(seconds=15))
    job = (await site.jobs.CreateJob(spec=spec)).job
    message = (await _events(site, job))["ROUND_SHORTENED"]
    assert message.startswith(
        "max_duration (2 s) is less than one round takes (15 s): the round is shortened"
    )


async def test_a_job_whose_rounds_fit_its_budget_has_no_such_event(site, make_spec):
    job = (await site.jobs.CreateJob(spec=make_spec())).job
    assert "ROUND_SHORTENED" not in await _events(site, job)


async def test_a_target_that_a_confirmed_candidate_has_passed_ends_the_job_at_once(site):
    job = await site.create(pod=ONE_AGENT)
    learner = site.learner()
    await _round(learner, score=480.0)
    await learner.ask()
    await learner.complete(evaluate=learner.evaluate_result(score=300.0))  # 475 was claimed in vain
    assert (
        await _set_objective(site, job, "target_return", target_return=301.0)
    ).state == job_pb2.JOB_STATE_RUNNING
    done = await _set_objective(site, job, "target_return", target_return=300.0)
    assert (done.state, done.outcome) == (
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_OUTCOME_TARGET_REACHED,
    )
    with pytest.raises(PreconditionFailed, match="ended"):
        await _set_objective(site, job, "target_return", target_return=500.0)


async def test_a_candidate_that_was_not_confirmed_has_to_pass_a_lowered_target_again(site):
    job = await site.create(pod=ONE_AGENT)
    learner = site.learner()
    await _round(learner, score=400.0)
    changed = await _set_objective(site, job, "target_return", target_return=350.0)
    assert changed.state == job_pb2.JOB_STATE_RUNNING
    lease = await learner.ask()
    assert lease.HasField("evaluate")
    await learner.complete(evaluate=learner.evaluate_result(score=360.0))
    assert (await site.job(job.name)).outcome == job_pb2.JOB_OUTCOME_TARGET_REACHED


async def test_a_budget_below_what_is_used_lets_the_rounds_under_way_end_and_then_the_job(site):
    job = await site.create(pod=ONE_AGENT)
    learner, other = site.learner(), site.learner("projects/default/pods/y")
    await _round(learner, score=100.0)
    await other.ask()
    changed = await _set_objective(site, job, "max_env_steps", max_env_steps=5)
    assert changed.state == job_pb2.JOB_STATE_RUNNING
    assert await learner.ask(wait_s=0.2) is None
    await other.complete(train=other.train_result(steps=10, score=50.0))
    ended = await site.job(job.name)
    assert (ended.state, ended.outcome) == (
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_OUTCOME_BUDGET_USED,
    )
    assert ended.progress.env_steps == 20


async def test_a_budget_that_is_raised_while_the_last_claim_is_heard_brings_more_rounds(site):
    site.board.round_env_steps = 400
    job = await site.create(objective=evolution_pb2.Objective(max_env_steps=1000), pod=ONE_AGENT)
    learner = site.learner()
    await _round(learner, score=1.0)
    for steps in (390, 390, 150):
        await learner.ask()
        await learner.complete(train=learner.train_result(steps=steps))
    await learner.ask()
    # too little was left for any step
    await learner.complete(train=learner.train_result(steps=0, score=2.0))
    assert (await learner.ask()).HasField("evaluate")
    await _set_objective(site, job, "max_env_steps", max_env_steps=2000)
    await learner.complete(evaluate=learner.evaluate_result(score=2.0))
    assert (await learner.ask()).HasField("train")
