"""What the orchestrator makes of a leaderboard that waits at a barrier, has finished, or whose
generator fails."""

from __future__ import annotations

import asyncio

from podracer.common.v1 import cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_orchestrator.board import requests
from podracer_orchestrator.works import works
from support.processes import until

TWO_PODS = job_pb2.PodShape(members=1, min_count=1, max_count=2)


async def test_a_generators_problem_is_an_event_once_for_each_message(site):
    site.board.round_env_steps = 100
    job = await site.create(pod=TWO_PODS)
    learner = site.learner()
    for message in (
        "it raised KeyError",
        "it raised KeyError",
        "it raised OSError",
        "it raised KeyError",
    ):
        site.board.generator_problem = cohort_pb2.Problem(
            reason="GENERATOR_FAILED", message=message, detail="Traceback…"
        )
        await learner.ask()
        await learner.complete(train=learner.train_result(100))
    found = await site.events(job, "GENERATOR_FAILED")
    assert [event.message for event in found] == ["it raised KeyError", "it raised OSError"]
    assert found[0].details["traceback"] == "Traceback…"
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_RUNNING


async def test_a_generator_that_says_something_else_each_time_does_not_fill_the_log(
    site, monkeypatch
):
    monkeypatch.setattr(works, "MAX_GENERATOR_PROBLEMS", 2)
    site.board.round_env_steps = 100
    job = await site.create(pod=TWO_PODS)
    learner = site.learner()
    for number in range(4):
        site.board.generator_problem = cohort_pb2.Problem(
            reason="GENERATOR_FAILED", message=f"agent {number} is odd"
        )
        await learner.ask()
        await learner.complete(train=learner.train_result(100))
    assert len(await site.events(job, "GENERATOR_FAILED")) == 2


async def test_the_job_ends_when_the_last_generation_is_over(site):
    site.board.round_env_steps = 100
    job = await site.create(pod=TWO_PODS)
    first, second = site.learner("projects/default/pods/a"), site.learner("projects/default/pods/b")
    await first.ask()
    await second.ask()
    await first.complete(train=first.train_result(100))
    site.board.has_nothing = True
    assert await first.ask(wait_s=0.2) is None  # the second still trains
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_RUNNING
    await second.complete(train=second.train_result(100))
    site.board.is_over = True
    await second.ask(wait_s=1.0)
    ended = await site.job(job.name)
    assert ended.state == job_pb2.JOB_STATE_FAILED
    assert ended.outcome == job_pb2.JOB_OUTCOME_NOTHING_JUDGED


async def test_a_round_that_ends_opens_a_barrier_at_once(site, monkeypatch):
    """Asked in vain, the leaderboard is left alone for a while; not any more once it has heard of
    another round."""
    monkeypatch.setattr(requests, "RETRY_S", 3600.0)
    site.board.round_env_steps = 100
    await site.create(pod=TWO_PODS)
    first, second = site.learner("projects/default/pods/a"), site.learner("projects/default/pods/b")
    await first.ask()
    site.board.has_nothing = True
    waiting = asyncio.create_task(second.ask(wait_s=20.0))
    await until(lambda: len(site.board.heard(leaderboard_pb2.ProposeCohortRequest)) == 2)
    await asyncio.sleep(0.2)
    assert len(site.board.heard(leaderboard_pb2.ProposeCohortRequest)) == 2
    site.board.has_nothing = False
    await first.complete(train=first.train_result(100))
    assert await asyncio.wait_for(first.ask(wait_s=10.0), 15.0) is not None
    assert await asyncio.wait_for(waiting, 15.0) is not None
