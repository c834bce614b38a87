"""The ensemble at the end of a job: named by the leaderboard, evaluated by a pod, and never in the
way of the end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import NotFound, Unavailable
from podracer_orchestrator import outbox
from podracer_orchestrator.board import requests
from podracer_orchestrator.outcomes import objective
from podracer_orchestrator.tables import JobRow

REQUESTED = agent_pb2.EVALUATION_PURPOSE_REQUESTED
THREE = evolution_pb2.Evolution(population=3, leaderboard_size=3, ensemble_size=3)
STEPS = evolution_pb2.Objective(max_env_steps=30)


async def run_out(site, learner, scores=(30.0, 20.0, 10.0)):
    """Use the budget up in one round, whose best is challenged; the leaderboard has a candidate for
    each score."""
    lease = await learner.ask()
    result = learner.train_result(steps=10, score=1.0)
    for member, score in zip(result.members, scores, strict=False):
        member.candidate.mean = member.candidate.lower_bound = score
    site.board.candidates = [
        leaderboard_pb2.Candidate(
            agent={"name": member.candidate.agent}, evaluation=member.candidate
        )
        for member, _ in zip(result.members, scores, strict=False)
    ]
    await learner.complete(train=result)
    await learner.confirm(scores[0])
    return lease


async def test_the_best_candidates_act_together_before_the_job_ends(site):
    job = await site.create(evolution=THREE, objective=STEPS)
    learner = site.learner()
    await run_out(site, learner)
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_RUNNING
    lease = await learner.ask()
    work = lease.evaluate
    assert [policy.agent for policy in work.policies] == [
        each.agent.name for each in site.board.candidates
    ]
    assert all(policy.checkpoint.prefix for policy in work.policies)
    assert (work.purpose, work.ensemble, len(set(work.seeds))) == (REQUESTED, "", 32)
    assert set(work.seeds).isdisjoint(range(32)), "none that a candidate was judged by"
    calls = [type(call).__name__ for call in site.board.calls]
    assert calls.index("GetLeaderboardRequest") > max(
        index for index, name in enumerate(calls) if name == "SubmitCandidateRequest"
    )
    await learner.complete(evaluate=learner.evaluate_result(score=35.0, cost_s=2.0))
    done = await site.ended(job)
    assert done.outcome == job_pb2.JOB_OUTCOME_BUDGET_USED
    assert done.ensemble.policies == work.policies
    assert (done.ensemble.rule, done.ensemble.evaluation.mean) == ("vote", 35.0)
    assert not done.ensemble.evaluation.agent
    assert done.progress.evaluation_cost.ToMilliseconds() == 2500
    assert (await site.kinds(job))[-2:] == ["ENSEMBLE_EVALUATED", "JOB_SUCCEEDED"]
    assert all(each.purpose != REQUESTED for each in site.board.evaluations.values()), (
        "it is no agent's"
    )


async def test_a_claim_that_comes_once_the_ensemble_has_begun_is_not_heard(site):
    job = await site.create(evolution=THREE, objective=STEPS)
    learner = site.learner()
    await run_out(site, learner)
    claim = agent_pb2.Evaluation()
    claim.CopyFrom(site.board.candidates[1].evaluation)
    claim.mean = claim.lower_bound = 99.0

    def hear(session):
        return objective.hear_claim(
            session, session.get_one(JobRow, job.uid), claim, datetime.now(UTC)
        )

    assert (await learner.ask()).evaluate.purpose == REQUESTED
    assert not await site.server.orchestrator.transactions.write(hear)
    await learner.complete(evaluate=learner.evaluate_result(score=35.0, cost_s=2.0))
    await site.ended(job)
    assert (await site.kinds(job)).count("CHALLENGE_STARTED") == 1


async def test_at_the_target_who_trains_is_told_to_end_and_nothing_new_begins(site):
    evolution = evolution_pb2.Evolution(population=2, leaderboard_size=2, ensemble_size=2)
    objective = evolution_pb2.Objective(target_return=475.0)
    job = await site.create(
        evolution=evolution, objective=objective, pod=job_pb2.PodShape(members=1, max_count=2)
    )
    one, two = site.learner(), site.learner("projects/default/pods/y")
    assert await two.ask()
    assert await one.ask()
    candidates = []
    for learner, score in ((one, 480.0), (two, 470.0)):
        result = learner.train_result(steps=10, score=score)
        candidates.append(result.members[0].candidate)
        if learner is two:
            site.board.candidates = [
                leaderboard_pb2.Candidate(agent={"name": each.agent}, evaluation=each)
                for each in candidates
            ]
            assert await two.renew() == pod_pb2.LEASE_ACTION_FINISH
            assert await one.ask(wait_s=0.2) is None
        await learner.complete(train=result)
        if learner is one:
            await one.ask()
            await one.complete(evaluate=one.evaluate_result(score=476.0))
    lease = await one.ask()
    assert len(lease.evaluate.policies) == 2
    await one.complete(evaluate=one.evaluate_result(score=481.0))
    done = await site.ended(job)
    assert (done.outcome, done.ensemble.evaluation.mean) == (
        job_pb2.JOB_OUTCOME_TARGET_REACHED,
        481.0,
    )


async def test_at_the_target_waiting_claims_are_dropped(site):
    evolution = evolution_pb2.Evolution(population=3, leaderboard_size=2, ensemble_size=2)
    objective = evolution_pb2.Objective(target_return=475.0)
    await site.create(
        evolution=evolution, objective=objective, pod=job_pb2.PodShape(members=1, max_count=3)
    )
    one, two, three = (site.learner(f"projects/default/pods/{name}") for name in ("x", "y", "z"))
    for learner in (one, two, three):
        await learner.ask()
    await one.complete(train=one.train_result(steps=10, score=480.0))
    await two.complete(train=two.train_result(steps=10, score=478.0))
    await one.confirm(476.0)
    assert await one.ask(wait_s=0.2) is None, (
        "the job only waits for its ensemble, and for who still trains"
    )


async def test_one_candidate_is_no_ensemble(site):
    job = await site.create(evolution=THREE, objective=STEPS)
    await run_out(site, site.learner(), scores=(30.0,))
    done = await site.ended(job)
    assert not done.HasField("ensemble")
    assert (await site.kinds(job))[-2:] == ["ENSEMBLE_SKIPPED", "JOB_SUCCEEDED"]


async def test_an_ensemble_that_cannot_be_evaluated_does_not_hold_up_the_end(site):
    job = await site.create(evolution=THREE, objective=STEPS)
    learner = site.learner()
    await run_out(site, learner)
    for _ in range(5):
        assert (await learner.ask()).WhichOneof("work") == "evaluate"
        await learner.release(reason="INTERNAL", message="the members do not fit")
    done = await site.ended(job)
    assert (done.outcome, done.HasField("ensemble")) == (job_pb2.JOB_OUTCOME_BUDGET_USED, False)
    (skipped,) = await site.events(job, "ENSEMBLE_SKIPPED")
    assert "the members do not fit" in skipped.message


async def test_a_leaderboard_that_does_not_answer_is_asked_again_and_at_last_given_up(
    site, monkeypatch
):
    monkeypatch.setattr(requests, "MAX_ASKED", 3)
    job = await site.create(evolution=THREE, objective=STEPS)
    learner = site.learner()
    lease = await learner.ask()
    site.board.is_away = True
    await learner.complete(lease=lease, train=learner.train_result(steps=10))
    await site.ended(job, job_pb2.JOB_STATE_FAILED)
    assert (await site.kinds(job))[-2:] == ["ENSEMBLE_SKIPPED", "JOB_FAILED"]  # nothing was judged


async def test_a_leaderboard_that_is_gone_ends_the_job_without_an_ensemble(site):
    job = await site.create(evolution=THREE, objective=STEPS)
    learner = site.learner()
    await learner.ask()
    site.board.refusal = NotFound("no such leaderboard")
    await learner.complete(train=learner.train_result(steps=10))
    await site.ended(job, job_pb2.JOB_STATE_FAILED)
    assert "ENSEMBLE_SKIPPED" in await site.kinds(job)


async def test_the_ensemble_survives_restarts(site):
    job = await site.create(evolution=THREE, objective=STEPS)
    learner = site.learner()
    lease = await learner.ask()
    result = learner.train_result(steps=10, score=1.0)
    site.board.is_away = True
    await learner.complete(lease=lease, train=result)
    await site.stop()
    site.board.is_away = False
    site.board.candidates = [
        leaderboard_pb2.Candidate(agent={"name": each.candidate.agent}, evaluation=each.candidate)
        for each in result.members
    ]
    await site.start()
    learner = site.learner()
    await learner.confirm(1.0)
    seeds = list((await learner.ask()).evaluate.seeds)
    await site.restart()
    learner.pods = site.client.pods
    assert await learner.renew() == pod_pb2.LEASE_ACTION_CONTINUE
    assert list((await learner.ask()).evaluate.seeds) == seeds
    await learner.complete(evaluate=learner.evaluate_result(score=35.0))
    assert (await site.ended(job)).ensemble.evaluation.mean == 35.0


async def test_a_database_that_fails_for_a_moment_ends_no_task(site, monkeypatch):
    job = await site.create(evolution=THREE, objective=STEPS)
    orchestrator, learner = site.server.orchestrator, site.learner()
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=1))
    lease = await learner.ask()
    read, failures, all_failed = orchestrator.transactions.read, [], asyncio.Event()

    async def fails_at_first(operation):
        if (
            operation in (requests._awaiting, outbox.boards_with_pending)
            and failures.count(operation) < 2
        ):
            failures.append(operation)
            if len(failures) == 4:
                all_failed.set()
            raise Unavailable("the disk is full")
        return await read(operation)

    monkeypatch.setattr(orchestrator.transactions, "read", fails_at_first)
    await learner.complete(lease=lease, train=learner.train_result(steps=9))
    await site.ended(job, job_pb2.JOB_STATE_FAILED)
    await asyncio.wait_for(all_failed.wait(), 30.0)  # the delivery looks again within a second
    assert not orchestrator.failed.done()
    assert len(site.board.submissions) == 6


async def test_a_cancelled_job_evaluates_no_ensemble(site):
    job = await site.create(evolution=THREE, objective=STEPS)
    learner = site.learner()
    await run_out(site, learner)
    await learner.ask()
    await site.jobs.CancelJob(name=job.name)
    await learner.complete(evaluate=learner.evaluate_result(score=35.0))  # still welcome
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_CANCELLED
    assert await learner.ask(wait_s=0.2) is None
