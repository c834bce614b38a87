"""A checkpoint that is not what was committed any more: the one before it takes its place, with an
event."""

from __future__ import annotations

import datetime

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.storage import checkpoint_prefix
from podracer_orchestrator.tables import Base, CheckpointRow
from podracer_orchestrator.works import begin_soundly

AGENT = "projects/default/jobs/j/agents/"
NOW = datetime.datetime.now(datetime.UTC)


def problem(prefix: str, file: str = "actor.safetensors") -> cohort_pb2.Problem:
    key = f"{prefix}{file}"
    return cohort_pb2.Problem(
        reason="DATA_CORRUPTED", message=f"{key} has been altered", subject=key
    )


async def test_a_pod_that_cannot_read_a_checkpoint_begins_from_the_one_before_it(site):
    site.board.round_env_steps = 400
    job = await site.create(pod=job_pb2.PodShape(members=1))
    learner = site.learner()
    for expected in (0, 10, 30):
        lease = await learner.ask()
        (agent,) = lease.train.cohort.members
        assert agent.resume.env_steps == expected
        if expected < 30:
            await learner.commit(steps=10 if expected == 0 else 20)
            await learner.release("DRAINING")
    site.store.put(f"{agent.resume.prefix}actor.safetensors", b"other bytes")
    await learner.complete(problem=problem(agent.resume.prefix))
    lease = await learner.ask()
    (agent,) = lease.train.cohort.members
    assert agent.resume.env_steps == 10
    found = await site.events(job, "CHECKPOINT_REFUSED")
    assert len(found) == 1
    assert "has been altered" in found[0].message
    assert "goes on from its checkpoint 10-" in found[0].message
    site.store.delete(f"{agent.resume.prefix}manifest.json")
    await learner.complete(problem=problem(agent.resume.prefix, "manifest.json"))
    lease = await learner.ask()
    (agent,) = lease.train.cohort.members
    assert not agent.HasField("resume")
    assert agent.initialization.kind == agent_pb2.INITIALIZATION_KIND_FRESH
    await learner.commit(steps=5)
    assert (await site.job(job.name)).progress.env_steps == 35, "what was trained was trained"


async def test_a_pod_that_cannot_read_what_is_sound_is_believed_nothing(site):
    site.board.round_env_steps = 400
    job = await site.create(pod=job_pb2.PodShape(members=1))
    learner = site.learner()
    await learner.ask()
    await learner.commit(steps=10)
    await learner.release("DRAINING")
    for _ in range(3):
        (agent,) = (await learner.ask()).train.cohort.members
        assert agent.resume.env_steps == 10
        await learner.complete(problem=problem(agent.resume.prefix))
    assert not await site.events(job, "CHECKPOINT_REFUSED")
    released = await site.events(job, "LEASE_RELEASED")
    assert "cannot read an object that is intact" in released[-1].message


async def test_what_two_pods_find_bad_costs_neither_its_work(site):
    site.board.round_env_steps = 400
    job = await site.create(pod=job_pb2.PodShape(members=1, max_count=2))
    one, two = site.learner(), site.learner("projects/default/pods/y")
    await one.ask()
    await one.commit(steps=10)
    prefix = one.checkpoint(one.lease.train.cohort.members[0].name, 10).prefix
    site.store.put(f"{prefix}actor.safetensors", b"other bytes")
    await two.ask()
    await two.complete(problem=problem(prefix))
    await one.complete(problem=problem(prefix))
    assert len(await site.events(job, "CHECKPOINT_REFUSED")) == 1
    assert not await site.events(job, "WORK_FAILED")


async def test_what_is_no_checkpoint_of_the_job_or_was_refused_already_fails_the_work(site):
    site.board.round_env_steps = 400
    job = await site.create(pod=job_pb2.PodShape(members=1))
    learner = site.learner()
    lease = await learner.ask()
    others = checkpoint_prefix("default", "another", "a0001", 10, 1)
    for subject in (f"{others}actor.safetensors", "projects/default/artifacts/x/content", ""):
        bad = cohort_pb2.Problem(reason="DATA_CORRUPTED", message="bad", subject=subject)
        await learner.complete(problem=bad)
        lease = await learner.ask()
        if lease is None:
            break
    found = await site.job(job.name)
    assert found.state == job_pb2.JOB_STATE_FAILED
    assert found.problem.reason == "DATA_CORRUPTED"
    assert not await site.events(job, "CHECKPOINT_REFUSED")


@pytest.fixture
def session():
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session


def stored(
    session: Session, agent: str, env_steps: int, *, refused: bool = False
) -> agent_pb2.CheckpointReference:
    prefix = checkpoint_prefix("default", "uid", agent, env_steps, env_steps)
    row = CheckpointRow(
        prefix=prefix, job_uid="uid", agent=AGENT + agent, checkpoint_id=f"{env_steps}-{env_steps}",
        manifest_sha256="0" * 64, size_bytes=1, env_steps=env_steps, fence=env_steps,
        create_time=NOW, refused=refused,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return agent_pb2.CheckpointReference(prefix=prefix, env_steps=env_steps)


def child(kind: int, *parents: agent_pb2.CheckpointReference) -> agent_pb2.AgentSpec:
    agent = agent_pb2.AgentSpec(name=f"{AGENT}child")
    agent.initialization.kind = kind
    for parent in parents:
        agent.initialization.parents.add(checkpoint=parent, weight=1.0)
    return agent


def test_a_child_gets_its_parents_checkpoint_before(session):
    stored(session, "a", 10)
    stored(session, "a", 15, refused=True)
    agent = child(agent_pb2.INITIALIZATION_KIND_COPY, stored(session, "a", 20, refused=True))
    begin_soundly(session, agent)
    assert [parent.checkpoint.env_steps for parent in agent.initialization.parents] == [10]
    assert agent.initialization.kind == agent_pb2.INITIALIZATION_KIND_COPY


def test_a_child_whose_parents_have_nothing_left_is_fresh(session):
    agent = child(agent_pb2.INITIALIZATION_KIND_NOISE, stored(session, "a", 20, refused=True))
    begin_soundly(session, agent)
    assert not agent.initialization.parents
    assert agent.initialization.kind == agent_pb2.INITIALIZATION_KIND_FRESH


def test_a_fusion_with_one_parent_left_is_a_copy(session):
    bad, good = stored(session, "a", 20, refused=True), stored(session, "b", 20)
    agent = child(agent_pb2.INITIALIZATION_KIND_FUSE, bad, good)
    begin_soundly(session, agent)
    assert [parent.checkpoint.prefix for parent in agent.initialization.parents] == [good.prefix]
    assert agent.initialization.kind == agent_pb2.INITIALIZATION_KIND_COPY


def test_what_is_sound_stays_as_it_is(session):
    agent = child(
        agent_pb2.INITIALIZATION_KIND_FUSE, stored(session, "a", 20), stored(session, "b", 20)
    )
    agent.resume.CopyFrom(stored(session, "child", 5))
    before = agent_pb2.AgentSpec()
    before.CopyFrom(agent)
    begin_soundly(session, agent)
    assert agent == before
