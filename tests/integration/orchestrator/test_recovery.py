"""The orchestrator, the leaderboard or an answer is lost: nothing is lost with it and nothing
counts twice."""

from __future__ import annotations

import asyncio

import pytest

from podracer.common.v1 import evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import InvalidInput, Unavailable
from podracer_orchestrator.server import create_server
from support.errors import raises
from support.processes import until


async def test_a_lease_survives_a_restart_of_the_orchestrator(site):
    job = await site.create()
    learner = site.learner()
    lease = await learner.ask()
    await learner.commit(steps=10)
    await site.restart()
    learner.pods = site.client.pods
    assert await learner.renew(steps=20) == pod_pb2.LEASE_ACTION_CONTINUE
    await learner.complete(train=learner.train_result(steps=30, score=1.0))
    done = await site.job(job.name)
    assert (done.progress.env_steps, done.progress.completed_rounds) == (60, 1)
    assert (await learner.ask()).fence > lease.fence


async def test_work_proposed_before_a_crash_is_proposed_again_with_the_same_request_id(site):
    await site.create()
    await until(lambda: site.board.boards)
    real = site.server.orchestrator.transactions

    class Dying:
        """Its process dies between the leaderboard's answer and the transaction that would store
        it."""

        read = real.read

        async def write(self, operation):
            raise Unavailable("killed")

    site.server.orchestrator.dispatcher._proposer._transactions = Dying()
    with pytest.raises(Unavailable):
        await site.learner().ask(wait_s=0.5)
    assert len(site.board.proposals) == 1
    await site.restart()
    lease = await site.learner().ask()
    assert len(site.board.proposals) == 1
    assert len(site.board.heard(leaderboard_pb2.ProposeCohortRequest)) == 2
    proposed = next(iter(site.board.proposals.values()))
    assert [member.name for member in lease.train.cohort.members] == [
        each.agent.name for each in proposed.proposals
    ]
    assert (await site.job(lease.job)).progress.agent_count == 2


async def test_results_reach_a_leaderboard_that_was_away(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    site.board.is_away = True
    # acknowledged all the same
    await learner.complete(train=learner.train_result(steps=10, score=20.0))
    assert await learner.ask(wait_s=0.5) is None  # but no new cohort is proposed on old news
    assert not site.board.submissions
    await site.restart()
    site.board.is_away = False
    lease = await site.learner().ask(wait_s=10)
    assert lease.WhichOneof("work") == "train"
    order = [type(call).__name__ for call in site.board.calls]
    assert order.index("SubmitCandidateRequest") < len(order) - 1 - order[::-1].index(
        "ProposeCohortRequest"
    )
    assert len(site.board.submissions) == 2
    assert len(site.board.heard(leaderboard_pb2.SubmitCandidateRequest)) == 2
    assert (await site.job(job.name)).progress.completed_rounds == 1


async def test_a_delivery_that_is_forgotten_before_it_is_noted_is_made_again_with_the_same_id(site):
    await site.create()
    learner = site.learner()
    await learner.ask()
    await until(lambda: site.board.boards)
    delivery = site.server.orchestrator._delivery

    def crash(*_):
        raise Unavailable("killed between delivery and note")

    settle, delivery._settle = delivery._settle, crash
    await learner.complete(train=learner.train_result(steps=10, score=20.0))
    await until(lambda: len(site.board.heard(leaderboard_pb2.SubmitCandidateRequest)) >= 4)
    delivery._settle = settle
    await learner.ask(wait_s=10)
    assert len(site.board.submissions) == 2
    assert len(site.board.evaluations) == 2


async def test_a_leaderboard_that_refuses_the_job_fails_it_with_its_reason(site):
    site.board.refusal = InvalidInput("no such generator", reason="UNKNOWN_GENERATOR")
    job = await site.create()
    found = await site.ended(job, job_pb2.JOB_STATE_FAILED)
    assert found.problem.reason == "UNKNOWN_GENERATOR"
    assert "no such generator" in found.problem.message


async def test_nothing_to_propose_is_asked_again_until_there_is_something(site):
    await site.create()
    site.board.has_nothing = True
    waiting = asyncio.create_task(site.learner().ask(wait_s=60))
    await until(lambda: site.board.heard(leaderboard_pb2.ProposeCohortRequest))
    site.board.has_nothing = False
    site.board.proposals.clear()
    lease = await asyncio.wait_for(waiting, 60)
    assert lease.WhichOneof("work") == "train"


async def test_budget_is_reserved_while_leased_given_back_and_used_up_exactly(site):
    site.board.round_env_steps = 400
    job = await site.create(
        objective=evolution_pb2.Objective(max_env_steps=1000),
        pod=job_pb2.PodShape(members=1, max_count=4),
    )
    one, two, three = (site.learner(f"projects/default/pods/p{index}") for index in range(3))
    first, second, third = await one.ask(), await two.ask(), await three.ask()
    limits = [lease.train.budget.env_steps_per_member for lease in (first, second, third)]
    assert limits == [400, 400, 200]
    assert (await site.job(job.name)).progress.reserved_env_steps == 1000
    four = site.learner("projects/default/pods/p4")
    assert await four.ask(wait_s=0.3) is None
    await one.commit(steps=100)
    assert (await site.job(job.name)).progress.reserved_env_steps == 900
    await one.complete(train=one.train_result(steps=100))  # 300 are given back
    lease = await four.ask()
    assert lease.train.budget.env_steps_per_member == 300
    for learner, steps in ((two, 400), (three, 200), (four, 300)):
        await learner.complete(train=learner.train_result(steps=steps))
    done = await site.job(job.name)
    assert (done.state, done.outcome) == (
        job_pb2.JOB_STATE_FAILED,
        job_pb2.JOB_OUTCOME_NOTHING_JUDGED,
    )
    assert done.progress.env_steps == 1000
    assert done.progress.reserved_env_steps == 0


async def test_a_cut_round_without_a_step_ends_the_job(site):
    site.board.round_env_steps = 400
    job = await site.create(
        objective=evolution_pb2.Objective(max_env_steps=1000),
        pod=job_pb2.PodShape(members=1, max_count=4),
    )
    learner = site.learner()
    for steps in (400, 400, 150, 0):
        await learner.ask()
        await learner.complete(train=learner.train_result(steps=steps))
    done = await site.job(job.name)
    assert (done.outcome, done.progress.env_steps) == (job_pb2.JOB_OUTCOME_NOTHING_JUDGED, 950)


async def test_active_time_counts_only_while_a_cohort_is_leased_and_ends_the_job(site):
    objective = evolution_pb2.Objective()
    objective.max_duration.FromMilliseconds(3000)
    job = await site.create(objective=objective)
    learner = site.learner()
    await asyncio.sleep(0.4)
    assert (await site.job(job.name)).progress.train_time.ToMilliseconds() == 0
    lease = await learner.ask()
    assert 2.0 < lease.train.budget.time.ToTimedelta().total_seconds() <= 3.0
    await asyncio.sleep(0.4)
    await learner.complete(train=learner.train_result(steps=10))
    used = (await site.job(job.name)).progress.train_time.ToMilliseconds()
    assert 400 <= used < 2950
    await asyncio.sleep(0.3)
    assert (await site.job(job.name)).progress.train_time.ToMilliseconds() == used
    await learner.ask()
    async with asyncio.timeout(30):
        while await learner.renew() != pod_pb2.LEASE_ACTION_FINISH:
            await asyncio.sleep(0.1)
    await learner.complete(train=learner.train_result(steps=10))
    assert (await site.job(job.name)).outcome == job_pb2.JOB_OUTCOME_NOTHING_JUDGED


async def test_a_target_needs_a_full_evaluation_with_a_committed_checkpoint(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=10, score=500.0, episodes=8))
    found = await site.job(job.name)
    assert found.state == job_pb2.JOB_STATE_RUNNING
    assert found.progress.best.mean == 500.0
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=10, score=476.0))
    found = await site.job(job.name)
    # one that was judged in full comes before a lucky few episodes
    assert found.progress.best.mean == 476.0
    await learner.confirm(475.0)
    found = await site.job(job.name)
    assert found.outcome == job_pb2.JOB_OUTCOME_TARGET_REACHED
    assert found.progress.best.mean == 475.0  # and one with fresh seeds before that


async def test_a_second_orchestrator_on_the_same_database_is_refused(site):
    with raises(InvalidInput, "DATABASE_IN_USE"):
        await create_server(site.make_settings())


async def test_a_taken_port_is_refused_and_frees_the_database(site):
    address = site.server.address
    database = f"sqlite:///{site.folder}/other.sqlite"
    with pytest.raises(InvalidInput, match="in use"):
        await create_server(site.make_settings(listen=address, database=database))
    server, _ = await create_server(site.make_settings(database=database))
    await server.start()
    await server.stop(0.0)
