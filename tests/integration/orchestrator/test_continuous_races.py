"""Continuous jobs beside whatever else users do at the same time: data sets, other jobs,
promotions, deletions."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from typing import Any

import pytest

from podracer.common.v1 import cohort_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import NotFound, PreconditionFailed
from support.errors import raises
from support.generations import (
    FAILED,
    KEPT,
    ONE,
    PROMOTED,
    STEPS,
    TRADER,
    begin,
    children,
    contest,
    create,
    history,
    kinds,
    train,
    upload,
)

CHINA = "projects/default/artifacts/china"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def artifacts(site: Any) -> list[str]:
    answer = await site.artifacts.ListArtifacts()
    return sorted(artifact.name for artifact in answer.artifacts)


async def ordinary(site: Any, score: float = 7.0) -> Any:
    """The TRAIN lease of a CartPole job that has ended."""
    job = await site.create(objective=STEPS, evolution=ONE)
    learner = site.learner()
    lease = await learner.ask()
    await learner.complete(train=learner.train_result(steps=30, score=score))
    await learner.confirm(score)
    await site.ended(job)
    return lease


async def test_a_generation_keeps_the_data_that_it_was_given_while_they_are_replaced(
    site, description
):
    await site.restart(collect_after=0.0)
    await upload(site, b"1")
    await create(site)
    learner = await begin(site, description)
    given = learner.lease.train.cohort.environment.data["table"]
    await upload(site, b"2")
    await upload(site, b"3")
    await site.jobs.CollectCheckpoints()
    assert await artifacts(site) == [CHINA, f"{CHINA}.{sha256(b'1')[:16]}"], "no job got version 2"
    assert site.store.get(given.key) == b"1"
    await learner.release()
    await site.restart()
    again = await site.learner().ask(wait_s=10.0)
    assert again.train.cohort.environment.data["table"] == given
    with raises(PreconditionFailed, "ARTIFACT_IN_USE", match=f"{CHINA} .* {TRADER}"):
        await site.artifacts.DeleteArtifact(name=CHINA)
    await site.jobs.CancelJob(name=f"{TRADER}-1")
    assert (await history(site, 1))[0].decision == FAILED
    second = await begin(site, description)
    assert second.lease.train.cohort.environment.data["table"].sha256 == sha256(b"3")
    await site.jobs.DeleteJob(name=f"{TRADER}-1")
    await site.jobs.CollectCheckpoints()
    assert await artifacts(site) == [CHINA]


async def test_content_that_is_back_before_anybody_has_looked_begins_nothing(site, description):
    await upload(site, b"1")
    await create(site)
    learner = await begin(site, description)
    await upload(site, b"2")
    await upload(site, b"1")
    await learner.complete(train=learner.train_result(steps=30, score=1.0))
    await learner.confirm(1.0)
    await history(site, 1)
    await site.restart()
    await asyncio.sleep(0.2)
    assert [child.generation for child in await children(site)] == [1]


async def work(site: Any, description: Any) -> list[Any]:
    """Do all work; agents of a second generation are better. Returns the TRAIN leases."""
    learner, found = site.learner(), []
    while (lease := await learner.ask(wait_s=3.0)) is not None:
        if lease.HasField("inspect"):
            await learner.complete(inspect=pod_pb2.InspectResult(description=description))
        elif lease.HasField("train"):
            found.append(lease)
            await learner.complete(train=learner.train_result(steps=30, score=10.0))
        else:
            is_second = lease.evaluate.policies[0].agent.split("/")[3].endswith("-2")
            await learner.complete(evaluate=learner.evaluate_result(2.0 if is_second else 1.0))
    return found


@pytest.mark.thorough
async def test_two_jobs_watch_one_data_set(site, description):
    """Each makes its own generations; what one of them leaves, or has deleted, is the other's no
    less."""
    await site.restart(collect_after=0.0)
    other = "projects/default/jobs/other"
    await upload(site, b"1")
    await create(site)
    await create(site, "other")
    await work(site, description)
    for name in (TRADER, other):
        assert (await history(site, 1, name))[0].decision == PROMOTED
    await upload(site, b"2")
    leases = await work(site, description)
    assert sorted(lease.job for lease in leases) == [f"{other}-2", f"{TRADER}-2"]
    assert {lease.train.cohort.environment.data["table"].sha256 for lease in leases} == {
        sha256(b"2")
    }
    await site.jobs.CancelJob(name=other)
    await site.jobs.DeleteJob(name=other)
    await site.jobs.CollectCheckpoints()
    assert await artifacts(site) == [CHINA, f"{CHINA}.{sha256(b'1')[:16]}"]
    won = (await history(site, 2))[0]
    assert (won.decision, won.champion.mean, won.challenger.mean) == (PROMOTED, 1.0, 2.0)
    assert sorted(child.name for child in await children(site)) == [f"{TRADER}-1", f"{TRADER}-2"]


async def test_a_generation_that_is_cancelled_in_its_contest_leaves_the_champion(site, description):
    await upload(site, b"1")
    await create(site)
    await train(site, description, score=10.0)
    await history(site, 1)
    await upload(site, b"2")
    await train(site, description, score=20.0)
    learner = site.learner()
    assert (await learner.ask(wait_s=10.0)).HasField("evaluate")
    await site.jobs.CancelJob(name=f"{TRADER}-2")
    failed, promoted = await history(site, 2)
    assert (failed.decision, failed.policy) == (FAILED, promoted.policy)
    assert failed.reason == f"{TRADER}-2 is CANCELLED"
    await upload(site, b"3")
    assert (await begin(site, description)).lease.job == f"{TRADER}-3"


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["champion", "challenger"])
async def test_a_side_that_cannot_be_evaluated_leaves_the_champion(site, description, side):
    await upload(site, b"1")
    await create(site, contest={"split": "tset"})
    await train(site, description, score=10.0)
    await history(site, 1)
    await upload(site, b"2")
    await train(site, description, score=20.0)
    learner = site.learner()
    while (lease := await learner.ask(wait_s=1.0)) is not None:
        is_challenger = lease.evaluate.policies[0].agent.startswith(f"{TRADER}-2/")
        if is_challenger is (side == "challenger"):
            await learner.complete(
                problem=cohort_pb2.Problem(reason="USER_CODE_FAILED", message="no split 'tset'")
            )
        else:
            await learner.complete(evaluate=learner.evaluate_result(1.0))
    kept, promoted = await history(site, 2)
    assert (kept.decision, kept.policy) == (KEPT, promoted.policy)
    assert kept.reason == f"the {side} could not be evaluated: no split 'tset'"
    assert (await site.job(f"{TRADER}-2")).state == job_pb2.JOB_STATE_SUCCEEDED


@pytest.mark.thorough
async def test_a_contest_waits_while_its_job_is_suspended(site, description):
    await upload(site, b"1")
    await create(site)
    await train(site, description, score=10.0)
    await history(site, 1)
    await upload(site, b"2")
    await train(site, description, score=20.0)
    await site.jobs.UpdateJob(name=TRADER, suspend=True)
    assert await site.learner().ask(wait_s=0.5) is None
    await site.restart()
    assert len(await history(site, 1)) == 1, "nothing was decided"
    await site.jobs.UpdateJob(name=TRADER, suspend=False)
    await contest(site, f"{TRADER}-2", champion=1.0, challenger=2.0)
    assert (await history(site, 2))[0].decision == PROMOTED


async def test_after_its_contest_a_generation_trains_no_more(site, description):
    """Neither a larger budget nor a late claim changes who is judged once the contest has been
    held."""
    await upload(site, b"1")
    await create(site)
    await train(site, description, score=10.0)
    await history(site, 1)
    await upload(site, b"2")
    await train(site, description, score=20.0)
    first, second = site.learner(), site.learner()
    await first.ask(wait_s=10.0)
    await first.complete(evaluate=first.evaluate_result(1.0))
    assert (await second.ask(wait_s=10.0)).HasField("evaluate")
    await site.jobs.UpdateJob(name=TRADER, suspend=True)
    await second.complete(evaluate=second.evaluate_result(1.0))
    more = job_pb2.JobSpec(objective=evolution_pb2.Objective(max_env_steps=1000))
    await site.jobs.UpdateJob(
        name=f"{TRADER}-2", spec=more, update_mask={"paths": ["objective.max_env_steps"]}
    )
    await site.jobs.UpdateJob(name=TRADER, suspend=False)
    assert (await history(site, 2))[0].decision == KEPT
    assert (await site.job(f"{TRADER}-2")).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_who_was_promoted_by_hand_during_the_contest_stays(site, description):
    await upload(site, b"1")
    await create(site)
    first = await train(site, description, score=10.0)
    await history(site, 1)
    await upload(site, b"2")
    await train(site, description, score=20.0)
    while "CONTEST_STARTED" not in await kinds(site, f"{TRADER}-2"):
        await asyncio.sleep(0.02)
    by_hand = (await site.jobs.PromotePolicy(job=TRADER, reason="by hand")).promotion
    assert by_hand.policy.agent.startswith(f"{TRADER}-2/")
    await contest(site, f"{TRADER}-2", champion=1.0, challenger=2.0)
    newest = (await history(site, 3))[0]
    assert (newest.decision, newest.policy) == (KEPT, by_hand.policy)
    assert newest.reason == "the champion has been changed by hand meanwhile"
    back = (await site.jobs.RollbackPolicy(job=TRADER)).promotion
    assert back.policy.agent == first.train.cohort.members[0].name


async def test_who_was_promoted_by_hand_before_its_contest_needs_none(site, description):
    await upload(site, b"1")
    await create(site)
    await train(site, description, score=10.0)
    await history(site, 1)
    await upload(site, b"2")
    learner = await begin(site, description)
    await learner.complete(train=learner.train_result(steps=30, score=20.0))
    by_hand = (await site.jobs.PromotePolicy(job=TRADER, reason="by hand")).promotion
    await learner.confirm(20.0)
    newest = (await history(site, 3))[0]
    assert (newest.decision, newest.policy) == (KEPT, by_hand.policy)
    assert newest.reason == "its best policy was promoted by hand already"
    assert "CONTEST_STARTED" not in await kinds(site, f"{TRADER}-2")


async def test_a_generation_can_be_changed_while_its_environment_is_inspected(site, description):
    """What its founders' checkpoints are is not lost on the way, nor the origin of what they
    observe."""
    await upload(site, b"1")
    description.observation_origin.append(1.7e9)
    await create(site)
    await train(site, description, score=10.0)
    champion = (await history(site, 1))[0].policy
    await upload(site, b"2")
    learner = site.learner()
    assert (await learner.ask(wait_s=10.0)).HasField("inspect")
    spec = job_pb2.JobSpec(weight=2.0)
    await site.jobs.UpdateJob(name=f"{TRADER}-2", spec=spec, update_mask={"paths": ["weight"]})
    description.observation_origin[:] = [1.8e9]
    await learner.complete(inspect=pod_pb2.InspectResult(description=description))
    assert (await learner.ask(wait_s=10.0)).HasField("train")
    (founder,) = site.board.boards["projects/default/leaderboards/trader-2"].founders
    assert founder.checkpoint == champion.checkpoint
    environment = learner.lease.train.cohort.environment
    assert environment.data["table"].sha256 == sha256(b"2")
    assert environment.observation_origin == [1.7e9]


async def test_a_champion_of_an_algorithm_that_is_not_searched_founds_nothing(site, description):
    """Promoted by hand, it competes as any other; the leaderboard of a generation would refuse it
    as a founder."""
    await upload(site, b"1")
    dqn = evolution_pb2.Search(algorithms=[evolution_pb2.AlgorithmShare(algorithm="dqn")])
    await create(site, search=dqn)
    await train(site, description, score=10.0)  # the leaderboard that is played only knows ppo
    await history(site, 1)
    await upload(site, b"2")
    await train(site, description, score=20.0)
    assert list(site.board.boards["projects/default/leaderboards/trader-2"].founders) == []
    await contest(site, f"{TRADER}-2", champion=1.0, challenger=2.0)
    assert (await history(site, 2))[0].decision == PROMOTED


async def test_what_is_being_deleted_cannot_be_promoted_meanwhile(site, monkeypatch):
    """Either the promotion comes first, and nothing is deleted, or there is nothing to promote any
    more."""
    lease = await ordinary(site)
    other = await site.create(display_name="other", objective=STEPS, evolution=ONE)
    agent = lease.train.cohort.members[0].name
    deleting, may_go_on = threading.Event(), threading.Event()
    store = site.server.orchestrator.store
    delete_prefix = store.delete_prefix

    def slowly(prefix: str) -> None:
        deleting.set()
        assert may_go_on.wait(60)
        delete_prefix(prefix)

    monkeypatch.setattr(store, "delete_prefix", slowly)
    deletion = asyncio.ensure_future(site.jobs.DeleteJob(name=lease.job))
    assert await asyncio.to_thread(deleting.wait, 10)
    with raises(PreconditionFailed, "NO_CANDIDATE"):
        await site.jobs.PromotePolicy(job=other.name, policy=agent)
    with pytest.raises(NotFound):
        await site.artifacts.GetArtifact(name=f"{lease.job}/checkpoints/best")
    may_go_on.set()
    await deletion
    with pytest.raises(NotFound):
        await site.job(lease.job)
