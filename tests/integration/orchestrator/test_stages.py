"""A stage after training that only this test knows: its class, and its place in the list."""

from __future__ import annotations

import pytest

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.outcomes import post_training
from podracer_orchestrator.stored_messages import best_of
from podracer_orchestrator.tables import WorkState
from podracer_orchestrator.transactions import WORK, touch
from podracer_orchestrator.works import EvaluationWork, Stage, evaluation_works

ONE = evolution_pb2.Evolution(population=1, leaderboard_size=1)
STEPS = evolution_pb2.Objective(max_env_steps=10)


class Rehearsal(EvaluationWork, Stage):
    """The best is played once more, for no other reason than to see it."""

    kind = "REHEARSAL"

    def is_wanted(self, session, job):
        return job.best is not None

    def begin(self, session, job, now):
        best = best_of(job)
        policy = agent_pb2.Parent(agent=best.agent, checkpoint=best.checkpoint)
        work = jobs.add_work(session, job, self.kind, WorkState.READY, now)
        evaluation_works.fill(
            job, work, [policy], agent_pb2.EVALUATION_PURPOSE_REQUESTED, best.seeds
        )
        touch(session, WORK)

    def complete(self, change, lease, result):
        super().complete(change, lease, result)
        change.record("REHEARSED", f"it scores {result.evaluation.mean:g}")


@pytest.fixture
async def rehearsing(site, monkeypatch):
    """A job that has used its budget, and its learner."""
    monkeypatch.setattr(post_training, "STAGES", (*post_training.STAGES, Rehearsal()))
    job, learner = await site.create(evolution=ONE, objective=STEPS), site.learner()
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=10, score=30.0))
    await learner.confirm(30.0)
    return job, learner


async def ending(site, job):
    await site.ended(job)
    return (await site.kinds(job))[-2:]


async def test_a_stage_is_a_class_and_its_place_in_the_list(site, rehearsing):
    job, learner = rehearsing
    lease = await learner.ask()
    assert lease.evaluate.purpose == agent_pb2.EVALUATION_PURPOSE_REQUESTED
    await site.restart()
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_RUNNING
    learner.pods = site.client.pods
    await learner.complete(evaluate=learner.evaluate_result(score=35.0))
    assert await ending(site, job) == ["REHEARSED", "JOB_SUCCEEDED"]


async def test_a_stage_that_fails_is_over(site, rehearsing):
    job, learner = rehearsing
    await learner.ask()
    await learner.complete(problem={"reason": "INTERNAL", "message": "it breaks"})
    assert await ending(site, job) == ["WORK_FAILED", "JOB_SUCCEEDED"]
