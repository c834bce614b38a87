"""Several learners of one agent over the wire: who leads, who follows, and what each death leaves
behind."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from google.protobuf import field_mask_pb2

from podracer.common.v1 import cohort_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import Fenced, InvalidInput
from podracer_leaderboard.server import MIGRATIONS, LeaderboardConfig, create_leaderboard_server
from podracer_orchestrator.leases import followers
from podracer_platform.database import open_database
from podracer_platform.rpc import bearer

UNLIMITED = evolution_pb2.Objective(target_return=475.0)


def team_of(learners: int, **pod) -> dict:
    """Parts of a spec for one cohort of two agents and so many learners, unless `pod` says
    otherwise."""
    return {
        "pod": job_pb2.PodShape(learners=learners, **{"max_count": 1, **pod}),
        "objective": UNLIMITED,
    }


def learners_of(site, names: str):
    return [site.learner(f"projects/default/pods/{name}", can_fuse=True) for name in names]


async def known(learners):
    """The same learners, once the orchestrator knows how many pods there are."""
    for learner in learners:
        assert await learner.ask(wait_s=0.0) is None
    return learners


async def report_follower(learner, lease, **result):
    """A follower's CompleteWork; its lease has no cohort of its own to make a result from."""
    request = pod_pb2.CompleteWorkRequest(lease=lease.name, fence=lease.fence, **result)
    await learner.pods.CompleteWork(request, metadata=bearer(lease.token))


async def test_one_pod_leads_and_the_others_follow_it_with_ranks_of_their_own(site):
    fusion = job_pb2.Fusion(
        name="outer", interval_updates=4, quorum=2, learning_rate=0.7, momentum=0.9
    )
    job = await site.create(**team_of(3, fusion=fusion))
    lead, one, two, more = learners_of(site, "abcd")
    led = (await lead.ask()).train
    assert led.follower_count == 2
    assert (led.fusion.fusion, led.fusion.interval_updates, led.fusion.quorum) == ("outer", 4, 2)
    assert (led.fusion.outer_learning_rate, led.fusion.outer_momentum) == (0.7, 0.9)
    assert led.fusion.deadline.seconds == 10
    follows = [(await learner.ask()).follow for learner in (one, two)]
    assert [(each.rank, each.lead_fence, each.lead_address) for each in follows] == [
        (1, lead.lease.fence, "a:7000"),
        (2, lead.lease.fence, "a:7000"),
    ]
    assert [each.train for each in follows] == [led, led]
    assert await more.ask(wait_s=0.2) is None
    found = await site.job(job.name)
    assert (found.state, found.progress.pod_count) == (job_pb2.JOB_STATE_RUNNING, 3)
    states = (await site.jobs.ListPods(job=job.name)).pods
    assert {
        pod.name[-1]: pod.state for pod in states if pod.state == job_pb2.POD_STATE_WORKING
    }.keys() == set("abc")


async def test_a_job_of_one_learner_knows_nothing_of_fusion(site):
    await site.create(pod=job_pb2.PodShape(learners=1, max_count=1), objective=UNLIMITED)
    first, second = learners_of(site, "ab")
    work = (await first.ask()).train
    assert work.follower_count == 0
    assert not work.HasField("fusion")
    assert await second.ask(wait_s=0.2) is None


async def test_a_pod_that_waits_follows_the_moment_somebody_leads(site):
    learners = learners_of(site, "abc")
    waiting = [asyncio.create_task(learner.ask(wait_s=20)) for learner in learners]
    await asyncio.sleep(0.2)
    await site.create(**team_of(3))
    leases = await asyncio.gather(*waiting)
    assert sorted(lease.WhichOneof("work") for lease in leases) == ["follow", "follow", "train"]
    assert sorted(lease.follow.rank for lease in leases) == [0, 1, 2]
    assert len(site.board.proposals) == 1


async def test_teams_are_as_many_as_the_pods_suffice_for_and_filled_evenly(site):
    learners = await known(learners_of(site, "abcd"))
    await site.create(**team_of(2, members=1, max_count=2))
    for learner in learners:
        await learner.ask()
    leads = [learner for learner in learners if learner.lease.HasField("train")]
    assert len(leads) == 2
    assert {learner.lease.follow.lead_fence for learner in learners} - {0} == {
        lead.lease.fence for lead in leads
    }
    assert {learner.lease.follow.rank for learner in learners} == {0, 1}


async def test_a_pod_that_cannot_fuse_is_offered_nothing_and_the_job_says_why(site):
    job = await site.create(**team_of(2))
    plain = site.learner("projects/default/pods/plain")
    for _ in range(2):
        assert await plain.ask(wait_s=0.1) is None
    (event,) = await site.events(job, "PODS_CANNOT_FUSE")
    assert "pods/plain cannot work for a job with several learners" in event.message
    (able,) = learners_of(site, "a")
    assert (await able.ask()).HasField("train")


async def test_who_vanishes_leaves_its_rank_to_another_and_the_lead_goes_on(site):
    await site.stop()
    await site.start(lease_term=0.8)
    job = await site.create(**team_of(3))
    lead, gone, stays, late = learners_of(site, "abcd")
    await lead.ask()
    assert [(await learner.ask()).follow.rank for learner in (gone, stays)] == [1, 2]
    waiting = asyncio.create_task(late.ask(wait_s=20))
    while not waiting.done():
        await lead.renew(steps=5)
        await stays.renew()
        await asyncio.sleep(0.1)
    assert (await waiting).follow.rank == 1
    with pytest.raises(Fenced):
        await gone.renew()
    await lead.complete(train=lead.train_result(steps=10))
    done = await site.job(job.name)
    assert (done.progress.env_steps, done.progress.completed_rounds) == (20, 1)
    assert [event.subject[-1] for event in await site.events(job, "LEASE_EXPIRED")] == ["b"]


async def test_when_the_lead_dies_all_lease_again_and_go_on_from_its_last_commit(site):
    await site.stop()
    await site.start(lease_term=0.8)
    job = await site.create(**team_of(2))
    lead, follower, third = learners_of(site, "abc")
    first = await lead.ask()
    old = await follower.ask()
    await lead.commit(steps=100)
    waiting = asyncio.create_task(third.ask(wait_s=20))
    with pytest.raises(Fenced):  # told by its own renewal, if not by its lead's silence
        while True:
            await follower.renew(lease=old)
            await asyncio.sleep(0.1)
    taken = await waiting
    assert taken.fence > first.fence
    assert [member.resume.env_steps for member in taken.train.cohort.members] == [100, 100]
    again = await follower.ask()
    assert (again.follow.lead_fence, again.follow.rank, again.follow.lead_address) == (
        taken.fence,
        1,
        "c:7000",
    )
    for call in (
        lead.renew(),
        lead.commit(steps=999),
        lead.complete(train=lead.train_result(steps=999)),
    ):
        with pytest.raises(Fenced):
            await call
    await third.complete(train=third.train_result(steps=50))
    assert (await site.job(job.name)).progress.env_steps == 300


async def test_the_end_of_the_round_ends_every_lease_of_the_team(site):
    job = await site.create(**team_of(3))
    lead, *others = learners_of(site, "abc")
    await lead.ask()
    leases = [await learner.ask() for learner in others]
    await lead.complete(train=lead.train_result(steps=10))
    for learner in others:
        with pytest.raises(Fenced):
            await learner.renew()
        # what it says after the end of the fusion is acknowledged all the same
        await learner.release()
    assert [event.subject[-1] for event in await site.events(job, "FOLLOW_ENDED")] == ["b", "c"]
    found = await site.job(job.name)
    assert (
        found.progress.env_steps,
        found.progress.pod_count,
        found.progress.completed_rounds,
    ) == (20, 0, 1)
    assert (await others[0].ask()).HasField("train"), "who comes first leads the next round"
    assert (await lead.ask()).follow.rank == 1
    assert min(lead.lease.fence, others[0].lease.fence) > max(lease.fence for lease in leases)


async def test_only_the_lead_reports_commits_and_completes(site, make_evaluation):
    job = await site.create(**team_of(2))
    lead, follower = learners_of(site, "ab")
    await lead.ask()
    lease = await follower.ask()
    agent = lease.follow.train.cohort.members[0]
    member = pod_pb2.MemberCheckpoint(
        progress=pod_pb2.MemberProgress(agent=agent.name, env_steps=7),
        checkpoint=follower.checkpoint(agent.name, 7),
    )
    commit = pod_pb2.CommitCheckpointRequest(lease=lease.name, fence=lease.fence, members=[member])
    with pytest.raises(InvalidInput, match="follows another"):
        await follower.pods.CommitCheckpoint(commit, metadata=bearer(lease.token))
    with pytest.raises(InvalidInput, match="follows another"):
        await follower.renew(evaluations=[make_evaluation(agent.name, 500.0)])
    result = pod_pb2.TrainResult(members=[pod_pb2.MemberResult(final=member)] * 2)
    with pytest.raises(InvalidInput, match="FOLLOW lease"):
        await report_follower(follower, lease, train=result)
    # What it reports of steps is in its lead's report.
    progress = [pod_pb2.MemberProgress(agent=agent.name, env_steps=1000)]
    renewal = pod_pb2.RenewLeaseRequest(
        lease=lease.name, fence=lease.fence, members=progress, env_steps_per_second=5000.0
    )
    answer = await follower.pods.RenewLease(renewal, metadata=bearer(lease.token))
    assert answer.action == pod_pb2.LEASE_ACTION_CONTINUE
    await lead.renew(steps=30)
    found = (await site.job(job.name)).progress
    assert (found.env_steps, found.live_env_steps, found.env_steps_per_second) == (0, 60, 1000.0)


async def test_a_follower_in_trouble_leaves_its_team_alone_and_comes_back_later(site, monkeypatch):
    job = await site.create(**team_of(2))
    lead, troubled, other = learners_of(site, "abc")
    await lead.ask()
    for learner in (troubled, other):  # more often than a work may be lost
        for _ in range(3):
            monkeypatch.setattr(followers, "BACK_OFF", timedelta(0))
            assert (await learner.ask()).follow.rank == 1
            await learner.release(reason="LEAD_LOST", message="the lead does not answer")
    monkeypatch.undo()
    assert await troubled.ask(wait_s=0.1) is None, "not at once to the same lead"
    monkeypatch.setattr(followers, "BACK_OFF", timedelta(0))
    lease = await troubled.ask()
    problem = cohort_pb2.Problem(reason="USER_CODE_FAILED", message="it raised")
    await report_follower(troubled, lease, problem=problem)
    await report_follower(troubled, lease, problem=problem)
    assert not await site.events(job, "WORK_FAILED")
    await lead.complete(train=lead.train_result(steps=10))
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_RUNNING


async def test_once_a_follower_has_heard_that_the_round_is_over_no_pod_joins_it(site):
    job = await site.create(**team_of(3))
    lead, first, second, more = learners_of(site, "abcd")
    await lead.ask()
    for learner in (first, second):
        await learner.ask()
    await first.release(reason="ROUND_OVER")
    assert await first.ask(wait_s=0.1) is None
    assert await more.ask(wait_s=0.1) is None
    waiting = asyncio.create_task(first.ask(wait_s=20))
    await lead.complete(train=lead.train_result(steps=10))
    assert (await waiting).HasField("train"), "who waited leads the next one"
    assert (await more.ask()).follow.rank == 1
    assert [event.subject[-1] for event in await site.events(job, "FOLLOW_ENDED")] == ["b", "c"]
    assert not await site.events(job, "LEASE_RELEASED")


async def test_a_follower_that_is_started_again_rejoins_at_once(site):
    await site.create(**team_of(3))
    lead, follower, _ = learners_of(site, "abc")
    await lead.ask()
    old = await follower.ask()
    follower.instance_id = "another"
    new = await follower.ask()
    assert (new.follow.rank, new.follow.lead_fence) == (1, lead.lease.fence)
    assert new.fence > old.fence
    with pytest.raises(Fenced):
        await follower.renew(lease=old)
    assert await lead.renew() == pod_pb2.LEASE_ACTION_CONTINUE


async def test_a_team_survives_a_restart_of_the_orchestrator(site):
    job = await site.create(**team_of(2))
    lead, follower, more = learners_of(site, "abc")
    await lead.ask()
    lease = await follower.ask()
    await lead.commit(steps=10)
    await site.restart()
    for learner in (lead, follower, more):
        learner.pods = site.client.pods
    assert await lead.renew(steps=20) == pod_pb2.LEASE_ACTION_CONTINUE
    assert await follower.renew() == pod_pb2.LEASE_ACTION_CONTINUE
    assert await more.ask(wait_s=0.2) is None, "the team is still complete"
    await lead.complete(train=lead.train_result(steps=30))
    with pytest.raises(Fenced):
        await follower.renew(lease=lease)
    assert (await site.job(job.name)).progress.env_steps == 60


async def test_a_job_that_wants_fewer_teams_gives_up_the_newest_with_its_followers(site):
    learners = await known(learners_of(site, "abcd"))
    job = await site.create(**team_of(2, members=1, max_count=2))
    for learner in learners:
        await learner.ask()
    await site.jobs.UpdateJob(
        name=job.name,
        spec=job_pb2.JobSpec(pod=job_pb2.PodShape(max_count=1)),
        update_mask=field_mask_pb2.FieldMask(paths=["pod.max_count"]),
    )
    first, second = sorted(each.lease.fence for each in learners if each.lease.HasField("train"))
    for learner in learners:
        stays = first in (learner.lease.fence, learner.lease.follow.lead_fence)
        action = pod_pb2.LEASE_ACTION_CONTINUE if stays else pod_pb2.LEASE_ACTION_RELEASE
        assert await learner.renew() == action
    (lead,) = (each for each in learners if each.lease.fence == second)
    await lead.release(reason="DRAINING")
    assert await lead.ask(wait_s=0.2) is None, "one team is enough, and it is complete"


async def training(learner, score: float):
    """The next lease that trains; challenges that come before it are confirmed."""
    while (lease := await learner.ask(wait_s=1.0)) is not None and lease.HasField("evaluate"):
        await learner.complete(evaluate=learner.evaluate_result(score))
    return lease


async def test_a_generation_is_trained_by_teams_and_its_barrier_leaves_no_pod_idle(site):
    """The real leaderboard: two agents a generation, of one pod each, and four pods for teams of
    three."""
    config = LeaderboardConfig(
        tokens=site.folder / "tokens", database=f"sqlite:///{site.folder}/leaderboard.sqlite"
    )
    database = await site.stack.enter_async_context(open_database(config.database, MIGRATIONS))
    board = await create_leaderboard_server(config, database)
    await site.stack.enter_async_context(board)
    await site.stop()
    await site.start(leaderboard=board.address)
    learners = await known(learners_of(site, "abcd"))
    job = await site.create(
        **team_of(3, members=1, max_count=2),
        evolution=evolution_pb2.Evolution(
            scheduler=evolution_pb2.SCHEDULER_GENERATIONAL,
            population=2,
            leaderboard_size=2,
            generations=2,
            round_env_steps=100,
        ),
    )
    for generation in range(2):
        for learner in learners:
            assert await training(learner, score=5.0) is not None
        first, second = (each for each in learners if each.lease.HasField("train"))
        agents = {each.lease.train.cohort.members[0].name for each in (first, second)}
        assert len(agents) == 2
        assert sorted(each.lease.follow.rank for each in learners) == [0, 0, 1, 1]
        await first.complete(train=first.train_result(100, score=10.0 + generation))
        # The generation is not over: free pods help the team that still trains.
        free = [
            each
            for each in learners
            if first.lease.fence in (each.lease.fence, each.lease.follow.lead_fence)
        ]
        joined = await training(free[0], score=5.0)
        assert (joined.follow.lead_fence, joined.follow.rank) == (second.lease.fence, 2)
        assert (
            joined.follow.train.cohort.members[0].name == second.lease.train.cohort.members[0].name
        )
        assert await training(free[1], score=5.0) is None, "the team is complete"
        await second.complete(train=second.train_result(100, score=20.0 + generation))
    assert await training(learners[0], score=5.0) is None
    ended = await site.ended(job)
    assert (ended.progress.completed_rounds, ended.progress.env_steps) == (4, 400)
