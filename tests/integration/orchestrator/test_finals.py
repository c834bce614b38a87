"""The final of a job without its target: what chooses among its best candidates is not what is
reported."""

from __future__ import annotations

import pytest

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2

REQUESTED = agent_pb2.EVALUATION_PURPOSE_REQUESTED
CHALLENGE = agent_pb2.EVALUATION_PURPOSE_CHALLENGE
FINAL = agent_pb2.EVALUATION_PURPOSE_FINAL
THREE = evolution_pb2.Evolution(population=3, leaderboard_size=3)
STEPS = evolution_pb2.Objective(target_return=475.0, max_env_steps=30)


async def run_out(site, learner, episode_ms=1, on_board=3):
    """Use the budget up in a round of 30 s, whose best is challenged for 0.5 s: 3.05 s are for the
    final."""
    await learner.ask()
    result = learner.train_result(steps=10, score=1.0)
    for member, score in zip(result.members, (30.0, 20.0, 10.0), strict=True):
        member.final.progress.cost.FromSeconds(10)
        member.candidate.mean = member.candidate.lower_bound = score
        member.candidate.duration.FromMilliseconds(32 * episode_ms)
        candidate = leaderboard_pb2.Candidate(
            agent={"name": member.candidate.agent}, evaluation=member.candidate
        )
        site.board.candidates.append(candidate)
    del site.board.candidates[on_board:]
    await learner.complete(train=result)
    await learner.ask()
    challenge = learner.evaluate_result(score=30.0)
    challenge.evaluation.duration.FromMilliseconds(32 * episode_ms)
    await learner.complete(evaluate=challenge)
    return [member.candidate.agent for member in result.members]


async def choose(learner, scores):
    """Have the finalists evaluated; returns the seeds that this took. A score of None: no pod can
    evaluate it."""
    seeds = set()
    for _ in scores:
        work = (await learner.ask()).evaluate
        assert (work.purpose, len(work.seeds)) == (REQUESTED, 32)
        seeds |= set(work.seeds)
        if scores[work.policies[0].agent] is None:
            await learner.complete(
                problem={"reason": "DATA_CORRUPTED", "message": "a hash is wrong"}
            )
        else:
            await learner.complete(
                evaluate=learner.evaluate_result(score=scores[work.policies[0].agent])
            )
    return seeds


async def test_fresh_episodes_choose_among_the_three_best_and_further_ones_are_reported(site):
    job, learner = await site.create(evolution=THREE, objective=STEPS), site.learner()
    agents = await run_out(site, learner)
    seeds = await choose(learner, dict(zip(agents, (20.0, 50.0, 40.0), strict=True)))
    work = (await learner.ask()).evaluate
    assert (work.policies[0].agent, work.purpose, len(work.seeds)) == (agents[1], CHALLENGE, 100)
    assert len(seeds) == 96 and seeds.isdisjoint(work.seeds)
    await site.restart()
    learner.pods = site.client.pods
    await learner.complete(evaluate=learner.evaluate_result(score=25.0))
    done = await site.ended(job)
    best = done.progress.best
    assert (done.outcome, best.agent, best.purpose) == (
        job_pb2.JOB_OUTCOME_BUDGET_USED,
        agents[1],
        FINAL,
    )
    assert (best.mean, len(best.returns)) == (25.0, 100), "less than the first challenge's 30"
    assert best in site.board.evaluations.values(), "the leaderboard knows it before the job ends"
    assert ([each.message for each in await site.events(job, "FINAL_EVALUATED")])[-1].endswith(
        "over 100 fresh episodes, the job's result"
    )


async def test_a_chosen_one_above_the_target_has_reached_it_whatever_becomes_of_the_others(site):
    job, learner = await site.create(evolution=THREE, objective=STEPS), site.learner()
    agents = await run_out(site, learner)
    await choose(learner, dict(zip(agents, (470.0, 480.0, None), strict=True)))
    assert (await learner.ask()).evaluate.policies[0].agent == agents[1]
    await learner.complete(evaluate=learner.evaluate_result(score=476.0))
    done = await site.ended(job)
    assert (done.outcome, done.progress.best.mean) == (job_pb2.JOB_OUTCOME_TARGET_REACHED, 476.0)
    assert done.progress.HasField("time_to_target")


@pytest.mark.parametrize(("episode_ms", "count"), [(17, 2), (86, 0), (96, None)])
async def test_where_cost_does_not_last_there_are_fewer_candidates_then_fewer_episodes(
    site, episode_ms, count
):
    """3.05 s: two of 32 and one of 100 take 2.79 s, one of 35 takes 3.01 s, one of 32 takes 3.07
    s."""
    job, learner = await site.create(evolution=THREE, objective=STEPS), site.learner()
    agents = await run_out(site, learner, episode_ms)
    if count is None:
        assert (await site.ended(job)).progress.best.purpose == CHALLENGE
        assert [each.message for each in await site.events(job, "FINAL_SKIPPED")] == [
            "no final: 32 episodes would take 3.07 s, 3.05 s are left"
        ]
        return
    await choose(learner, dict.fromkeys(agents[:count], 30.0))
    work = (await learner.ask()).evaluate
    assert (work.policies[0].agent, work.purpose, len(work.seeds)) == (
        agents[0],
        CHALLENGE,
        100 if count else 35,
    )
    await learner.complete(evaluate=learner.evaluate_result(score=28.0))
    assert (await site.ended(job)).progress.best.mean == 28.0
    less = "2 instead of 3" if count else "35 instead of 100"
    (event,) = await site.events(job, "FINAL_STARTED" if count else "FINAL_EVALUATED")
    assert event.message.endswith(f", {less}: time and cost allow no more")


async def test_without_candidates_on_the_leaderboard_the_jobs_best_is_evaluated(site):
    job, learner = await site.create(evolution=THREE, objective=STEPS), site.learner()
    agents = await run_out(site, learner, on_board=0)
    work = (await learner.ask()).evaluate
    assert (work.policies[0].agent, len(work.seeds)) == (agents[0], 100)
    for _ in range(5):
        await learner.release(reason="INTERNAL", message="it breaks")
        await learner.ask(wait_s=1.0)
    assert (await site.ended(job)).progress.best.mean == 30.0, "what was known before"
    assert "it breaks" in (await site.events(job, "FINAL_SKIPPED"))[0].message


async def test_a_cancelled_job_has_no_further_part_of_its_final(site):
    job, learner = await site.create(evolution=THREE, objective=STEPS), site.learner()
    await run_out(site, learner, on_board=2)
    await learner.ask()
    await site.jobs.CancelJob(name=job.name)
    await learner.complete(evaluate=learner.evaluate_result(score=35.0))  # still welcome
    found = await site.job(job.name)
    assert (found.state, found.progress.best.mean) == (job_pb2.JOB_STATE_CANCELLED, 30.0)
    assert await learner.ask(wait_s=0.2) is None
