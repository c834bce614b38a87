"""Users fork, pin and stop agents: events, idempotency, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio

import pytest

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.errors import InvalidInput, NotFound, PreconditionFailed, Unavailable
from support.errors import raises

FAST = {"learning_rate": agent_pb2.HyperparameterValue(number=1e-2)}


async def a_round(site):
    """The agents of a job after a round."""
    job = await site.create()
    learner = site.learner()
    lease = await learner.ask()
    await learner.complete(train=learner.train_result(steps=30, score=7.0))
    return job, [member.name for member in lease.train.cohort.members]


async def told(site, job, kind="AGENT_"):
    return [event for event in await site.events(job) if event.kind.startswith(kind)]


async def fork(site, agent, request_id="r", hyperparameters=FAST):
    return (
        await site.jobs.ForkAgent(
            name=agent, hyperparameters=hyperparameters, request_id=request_id
        )
    ).agent


async def test_a_fork_is_an_event_with_who_and_what_and_is_made_once(site):
    job, (agent, _) = await a_round(site)
    made = await fork(site, agent)
    assert await fork(site, agent) == made == f"{job.name}/agents/a0003"
    assert list(site.board.forks) == ["r"]
    (event,) = await told(site, job)
    assert (event.kind, event.subject) == ("AGENT_FORKED", agent)
    assert event.message == "a0001 is forked by client: learning_rate 0.01"
    assert (event.details["by"], event.details["changed"]) == ("client", "learning_rate 0.01")
    assert event.time.ToDatetime() >= job.create_time.ToDatetime()
    first, second = await asyncio.gather(*(fork(site, agent, "twice") for _ in range(2)))
    assert first == second and len(await told(site, job)) == 2


async def test_what_cannot_be_forked_leaves_no_trace(site):
    job, (agent, _) = await a_round(site)
    site.board.refusal = InvalidInput("gama: is no hyperparameter of ppo")
    with pytest.raises(InvalidInput, match="gama"):
        await fork(site, agent)
    site.board.refusal = None
    with pytest.raises(NotFound):
        await fork(site, f"{agent}9")
    with pytest.raises(NotFound):
        await fork(site, agent.replace("/jobs/", "/jobs/x"))
    with raises(InvalidInput, "INVALID_NAME", field="name"):
        await fork(site, job.name)
    with pytest.raises(InvalidInput, match="request_id"):
        await fork(site, agent, "r" * 65)
    site.board.is_away = True
    with pytest.raises(Unavailable):
        await fork(site, agent)
    site.board.is_away = False
    await site.jobs.CancelJob(name=job.name)
    for act in (fork(site, agent), site.jobs.PinAgent(name=agent), site.jobs.StopAgent(name=agent)):
        with raises(PreconditionFailed, "JOB_ENDED"):
            await act
    assert not site.board.forks and not await told(site, job)


async def test_a_fork_acknowledged_before_a_crash_is_made_after_it(site):
    """The leaderboard answers the check, and is away from then on; the orchestrator dies before it
    hears."""
    job, (agent, _) = await a_round(site)
    site.board.goes_after_a_check = True
    assert await fork(site, agent) == "", "acknowledged, without a name yet"
    site.board.goes_after_a_check = False
    await site.stop()
    site.board.is_away = False
    await site.start()
    made = await fork(site, agent)
    assert site.board.forks["r"].name == made
    assert len(await told(site, job)) == 1, "the same request is the same act"


async def test_what_a_fork_begins_from_stays(site):
    await site.restart(collect_after=0.0, keep_best=0, keep_last=1)
    job, agents = await a_round(site)
    site.board.retired = set(agents)
    would_go = service_pb2.CollectCheckpointsRequest(validate_only=True)
    doomed = (await site.client.jobs.CollectCheckpoints(would_go)).prefixes
    (other,) = [
        agent
        for agent in agents
        if any(f"/{agent.rpartition('/')[2]}/" in prefix for prefix in doomed)
    ]
    await fork(site, other)
    (event,) = await told(site, job)
    assert [event.details["checkpoint"]] == doomed
    assert not (await site.client.jobs.CollectCheckpoints(would_go)).prefixes


async def test_a_checkpoint_that_is_gone_cannot_be_forked(site):
    await site.restart(collect_after=0.0, keep_best=0, keep_last=1)
    job, agents = await a_round(site)
    site.board.retired = set(agents)
    gone = (await site.jobs.CollectCheckpoints()).prefixes
    (other,) = [agent for agent in agents if f"/{agent.rpartition('/')[2]}/" in gone[0]]
    with raises(PreconditionFailed, "NO_CHECKPOINT"):
        await fork(site, other)
    assert not site.board.forks and not await told(site, job)


async def test_pins_and_stops_are_told_once(site):
    job, (first, second) = await a_round(site)
    for fields in ({}, {}, {"unpin": True}, {"unpin": True}):
        await site.jobs.PinAgent(name=first, **fields)
    await site.jobs.StopAgent(name=second)
    await site.jobs.StopAgent(name=second)
    with raises(PreconditionFailed, "AGENT_ENDED"):
        await site.jobs.PinAgent(name=second)
    events = await told(site, job)
    assert [(event.kind, event.subject) for event in events] == [
        ("AGENT_PINNED", first),
        ("AGENT_UNPINNED", first),
        ("AGENT_STOPPED", second),
    ]
    assert {event.details["by"] for event in events} == {"client"}
    await site.stop()  # everything is delivered
    await site.start()
    await site.jobs.StopAgent(name=second)
    assert site.board.stopped == {second} and not site.board.pinned
    assert len(site.board.heard(leaderboard_pb2.StopAgentRequest)) == 1
    site.board.retired, site.board.stopped = {first}, set()
    with pytest.raises(PreconditionFailed, match="is retired"):
        await site.jobs.StopAgent(name=first)
