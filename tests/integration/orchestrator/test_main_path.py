"""From CreateJob to a reached target, over real gRPC."""

from __future__ import annotations

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2


async def test_a_job_runs_to_its_target(site):
    job = await site.create()
    assert job.state == job_pb2.JOB_STATE_PENDING
    assert job.name.startswith("projects/default/jobs/cartpole-")

    learner = site.learner()
    lease = await learner.ask()
    assert [member.name for member in lease.train.cohort.members] == [
        f"{job.name}/agents/a0001",
        f"{job.name}/agents/a0002",
    ]
    assert lease.train.evaluation.episodes == 32
    assert lease.train.budget.time.seconds == 15
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_RUNNING

    await learner.renew(steps=100)
    assert (await site.job(job.name)).progress.live_env_steps == 200
    await learner.commit(steps=100)
    await learner.complete(train=learner.train_result(steps=250, score=480.0))
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_RUNNING, (
        "one evaluation is a claim"
    )
    await learner.confirm(477.0)

    job = await site.job(job.name)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert job.outcome == job_pb2.JOB_OUTCOME_TARGET_REACHED
    assert job.progress.env_steps == 500
    assert job.progress.best.mean == 477.0
    assert job.progress.completed_rounds == 1
    assert job.progress.agent_count == 2
    assert (
        0
        < job.progress.time_to_target.ToTimedelta().total_seconds()
        <= job.progress.train_time.ToTimedelta().total_seconds()
    )

    news = [message async for message in site.jobs.WatchJob(name=job.name)]
    kinds = [event.kind for message in news for event in message.events]
    assert kinds[:3] == ["JOB_CREATED", "COHORT_PROPOSED", "LEASE_GRANTED"]
    # whenever the leaderboard has answered
    kinds = [kind for kind in kinds if kind != "CANDIDATE_ADMITTED"]
    assert kinds[-5:] == [
        "LEASE_GRANTED",
        "CHALLENGE_PASSED",
        "NEW_BEST",
        "TARGET_REACHED",
        "JOB_SUCCEEDED",
    ]
    assert {"ROUND_COMPLETED", "CHALLENGE_STARTED"} <= set(kinds)


async def test_the_leaderboard_hears_of_every_round_once(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=10, score=20.0))
    await learner.ask()  # which flushes the outbox first
    assert set(site.board.boards) == {job.leaderboard}
    assert len(site.board.heard(leaderboard_pb2.SubmitCandidateRequest)) == 2
    assert len(site.board.evaluations) == 2
    first = next(iter(site.board.submissions.values()))
    assert (first.env_steps, first.cost.seconds) == (10, 1)
    assert first.latest.prefix == first.candidate.checkpoint.prefix
