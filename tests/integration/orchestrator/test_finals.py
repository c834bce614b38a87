"""The final at the end of a job: what chooses among its best candidates is not what is reported."""

from __future__ import annotations

import pytest

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_service_pb2

REQUESTED, CHALLENGE = agent_pb2.EVALUATION_PURPOSE_REQUESTED, agent_pb2.EVALUATION_PURPOSE_CHALLENGE
THREE = evolution_pb2.Evolution(population=3, leaderboard_size=3)
STEPS = evolution_pb2.Objective(max_env_steps=30)


async def messages(site, job, kind):
    answer = await site.client.jobs.ListEvents(job_service_pb2.ListEventsRequest(job=job.name, page_size=1000))
    return [event.message for event in answer.events if event.kind == kind]


async def run_out(site, learner, episode_ms, on_board=3):
    """Use the budget up in a round of 3 s, whose best is challenged for 0.5 s: 0.35 s are for the final."""
    await learner.ask()
    result = learner.train_result(steps=10, score=1.0)
    for member, score in zip(result.members, (30.0, 20.0, 10.0), strict=True):
        member.candidate.mean = member.candidate.lower_bound = score
        member.candidate.duration.FromMilliseconds(32 * episode_ms)
        candidate = leaderboard_pb2.Candidate(agent={"name": member.candidate.agent}, evaluation=member.candidate)
        site.board.candidates.append(candidate)
    del site.board.candidates[on_board:]
    await learner.complete(train=result)
    await learner.ask()
    challenge = learner.evaluate_result(score=30.0)
    challenge.evaluation.duration.FromMilliseconds(32 * episode_ms)
    await learner.complete(evaluate=challenge)
    return [member.candidate.agent for member in result.members]


@pytest.mark.parametrize("fails", [False, True])
async def test_fresh_episodes_choose_among_the_three_best_and_further_ones_are_reported(site, fails):
    job, learner = await site.create(evolution=THREE, objective=STEPS), site.learner()
    agents, seeds = await run_out(site, learner, episode_ms=1), set()
    scores = dict(zip(agents, (20.0, 50.0, 40.0), strict=True))
    for _ in agents:
        work = (await learner.ask()).evaluate
        agent, score = work.policies[0].agent, scores[work.policies[0].agent]
        assert (work.purpose, len(work.seeds)) == (REQUESTED, 32)
        seeds |= set(work.seeds)
        if fails and agent == agents[1]:
            await learner.complete(problem={"reason": "DATA_CORRUPTED", "message": "a hash is wrong"})
        else:
            await learner.complete(evaluate=learner.evaluate_result(score=score))
    chosen = agents[2] if fails else agents[1]
    work = (await learner.ask()).evaluate
    assert (work.policies[0].agent, work.purpose, len(work.seeds)) == (chosen, CHALLENGE, 100)
    assert len(seeds) == 96 and seeds.isdisjoint(work.seeds)
    await site.stop()
    await site.start()
    learner.pods = site.client.pods
    await learner.complete(evaluate=learner.evaluate_result(score=25.0))
    best = (await site.ended(job)).progress.best
    assert (best.agent, best.mean, len(best.returns)) == (chosen, 25.0, 100), "less than the first challenge's 30"
    assert "instead" not in (await messages(site, job, "FINAL_EVALUATED"))[-1]


async def test_where_cost_does_not_last_only_the_first_is_reported_with_fewer_episodes(site):
    job, learner = await site.create(evolution=THREE, objective=STEPS), site.learner()
    agents = await run_out(site, learner, episode_ms=10)
    work = (await learner.ask()).evaluate
    assert (work.policies[0].agent, work.purpose, len(work.seeds)) == (agents[0], CHALLENGE, 35)
    await learner.complete(evaluate=learner.evaluate_result(score=28.0))
    assert (await site.ended(job)).progress.best.mean == 28.0
    (message,) = await messages(site, job, "FINAL_EVALUATED")
    assert message.endswith("over 35 fresh episodes instead of 100")


async def test_without_candidates_on_the_leaderboard_the_job_ends_with_its_best(site):
    job, learner = await site.create(evolution=THREE, objective=STEPS), site.learner()
    await run_out(site, learner, episode_ms=1, on_board=0)
    assert (await site.ended(job)).progress.best.mean == 30.0
    assert await messages(site, job, "FINAL_SKIPPED") == ["no final: no candidate can be evaluated"]
