"""Worlds that break: what a job says of them, what they count with, and who cannot be its best."""

from __future__ import annotations

import math

import pytest

from podracer.common.v1 import evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from support.processes import until

TWO_AGENTS = job_pb2.PodShape(members=2, max_count=1)
TARGET = evolution_pb2.Objective(target_return=-17.0, max_env_steps=1_000_000)


def breaks(evaluation, count):
    """Play `count` further episodes that break."""
    evaluation.broken_number_episodes, evaluation.first_break = count, "step 13: the reward was nan"


async def test_a_break_is_told_counts_with_the_lowest_return_and_bars_the_first_place(site):
    job = await site.create(pod=TWO_AGENTS, objective=TARGET)
    learner = site.learner()
    lease = await learner.ask()
    assert not lease.train.HasField("lowest_return")
    crashing, honest = [agent.name for agent in lease.train.cohort.members]
    result = learner.train_result(steps=10, score=-15.0)
    honest_result = result.members[1].candidate
    honest_result.returns[:] = [-20.0] * 32
    honest_result.mean = honest_result.lower_bound = honest_result.upper_bound = -20.0
    breaks(result.members[0].candidate, 32)
    result.breaks.add(member=1, text="reset: KeyError: 'price'", traceback="your own lines")
    reason = "its environment broke in 32 of 64 episodes, those of the other agents in 0 of 32"
    site.board.exclusions = [leaderboard_pb2.Exclusion(agent=crashing, reason=reason)]
    site.board.candidates = [leaderboard_pb2.Candidate(rank=1, evaluation=honest_result)]
    await learner.complete(train=result)

    async def is_excluded():
        return bool(await site.events(job, "AGENT_EXCLUDED"))

    await until(is_excluded)

    async def has_honest_best():
        return (await site.job(job.name)).progress.best.agent == honest

    await until(has_honest_best)
    found = await site.job(job.name)
    assert found.progress.best_score == -20.0
    assert not found.progress.HasField("time_to_target")
    told = {event.details["what"]: event for event in await site.events(job, "WORLD_BROKE")}
    assert told["numbers"].subject == crashing
    assert "CartPole-v1 broke with a0001: step 13: the reward was nan" in told["numbers"].message
    assert (told["code"].subject, told["code"].details["traceback"]) == (honest, "your own lines")

    await learner.confirm(-20.0)  # it is the best now, and so it is evaluated again
    lease = await learner.ask()
    assert lease.train.lowest_return == -20.0
    again = learner.train_result(steps=20, score=-10.0)
    breaks(again.members[0].candidate, 32)
    again.members[1].ClearField("candidate")
    await learner.complete(train=again)
    assert len(await site.events(job, "WORLD_BROKE")) == 2, "once for each kind"
    assert (await site.job(job.name)).progress.best.agent == honest, (
        "the leaderboard's last word holds"
    )
    first, *_ = await site.events(job, "NEW_BEST")
    half = 1.99834 * math.sqrt(64 * 2.5**2 / 63) / math.sqrt(64)
    assert float(first.details["score"]) == pytest.approx(-17.5 - half, abs=1e-4), (
        "32 of -15, and 32 of -20, the lowest"
    )


async def test_warnings_and_slow_algorithms_are_told_once(site):
    job = await site.create(pod=job_pb2.PodShape(members=1, max_count=1))
    learner = site.learner()
    for speed, algorithm in ((9_000.0, "ppo"), (70.0, "a2c"), (80.0, "a2c")):
        site.board.algorithm = algorithm
        await learner.ask()
        result = learner.train_result(steps=10)
        result.env_steps_per_second = speed
        await learner.complete(train=result)
    (slow,) = await site.events(job, "ALGORITHM_SLOW")
    assert slow.message.startswith("a2c takes 70 steps/s, ppo 9,000: in rounds of ")
