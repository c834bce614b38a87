"""The steps of a continuous job, each cut off by a crash before it is durable, and then taken
again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf import duration_pb2
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_orchestrator.continuous import contests, generations, promotions
from podracer_orchestrator.jobs import JobOutcome, JobState, NewJob, founders, jobs, submission
from podracer_orchestrator.tables import Base, CheckpointRow, Decision, JobRow, OutboxRow, WorkState
from podracer_orchestrator.works import works

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as found:
        yield found
    engine.dispose()


def make(session: Session) -> JobRow:
    continuous = job_pb2.Continuous(interval=duration_pb2.Duration(seconds=86400))
    spec = submission.checked(
        job_pb2.JobSpec(
            display_name="agent",
            environment=environment_pb2.EnvironmentSpec(id="CartPole-v1"),
            objective=evolution_pb2.Objective(max_env_steps=1000),
            continuous=continuous,
        )
    )
    job = jobs.create(
        session, NewJob("default", "agent", spec, submission.known_description(spec)), START
    )
    session.commit()
    return job


def stand(session: Session) -> tuple[object, ...]:
    """Everything that a step may change."""
    return (
        session.scalars(select(JobRow.job_id).order_by(JobRow.job_id)).all(),
        [(row.position, row.decision) for row in session.scalars(select(promotions.PromotionRow))],
        len(session.scalars(select(OutboxRow)).all()),
    )


def step(session: Session, job: JobRow, now: datetime) -> bool:
    """Crash before the step is durable, see that nothing has changed, and take it again."""
    before = stand(session)
    changes = generations.advance(session, job.uid, now)
    session.rollback()
    assert stand(session) == before
    assert generations.advance(session, job.uid, now) is changes
    session.commit()
    return changes


def child_of(session: Session, job: JobRow) -> JobRow:
    return list(jobs.children(session, job))[-1]


def end_well(session: Session, child: JobRow, mean: float, now: datetime) -> None:
    """The generation has brought a candidate of that mean; its contest, where it has one, is held
    before the end."""
    agent = f"projects/default/jobs/{child.job_id}/agents/a1"
    prefix = f"projects/default/jobs/{child.uid}/agents/a1/"
    prefix += "checkpoints/9-1/"
    row = {
        "checkpoint_id": "9-1",
        "manifest_sha256": "0" * 64,
        "size_bytes": 1,
        "env_steps": 9,
        "fence": 1,
    }
    session.add(
        CheckpointRow(prefix=prefix, job_uid=child.uid, agent=agent, create_time=now, **row)
    )
    best = agent_pb2.Evaluation(agent=agent, mean=mean, returns=[mean] * 32, evaluation_id="e")
    best.checkpoint.prefix, best.checkpoint.manifest_sha256 = prefix, "0" * 64
    child.best, child.best_score = best.SerializeToString(), mean
    session.flush()
    contest = contests.ContestWork()
    if contest.is_wanted(session, child):
        contest.begin(session, child, now)
        for work in works.of_kind(session, child, contest.kind):
            value = mean if work.contest == contests.CHALLENGER else 5.0
            result = agent_pb2.Evaluation(
                agent="x", mean=value, returns=[value] * 32, evaluation_id=work.id
            )
            work.state, work.result = WorkState.DONE, result.SerializeToString()
    jobs.succeed(session, child, JobOutcome.BUDGET_USED, "over", now)
    session.commit()


def test_generations_by_the_clock(session):
    job = make(session)
    assert job.state == JobState.RUNNING
    assert step(session, job, START)
    first = child_of(session, job)
    assert (first.job_id, first.generation, first.parent_uid) == ("agent-1", 1, job.uid)
    assert not step(session, job, START + 2 * DAY), "never two at once, whatever the clock says"
    end_well(session, first, 5.0, START)
    assert step(session, job, START + DAY / 2)
    assert [row.decision for row in promotions.stack(session, job.uid, "champion")] == [
        Decision.PROMOTED
    ]
    assert not step(session, job, START + DAY / 2), "the day is not over"
    assert step(session, job, START + DAY)
    second = child_of(session, job)
    assert second.job_id == "agent-2"
    end_well(session, second, 4.0, START + DAY)
    assert step(session, job, START + DAY)
    rows = session.scalars(select(promotions.PromotionRow)).all()
    assert [row.decision for row in rows] == [Decision.PROMOTED, Decision.KEPT]
    assert rows[1].prefix == rows[0].prefix, "the champion stays"


def test_a_failed_or_deleted_generation_is_noted_once(session):
    job = make(session)
    step(session, job, START)
    jobs.fail(
        session, child_of(session, job), cohort_pb2.Problem(reason="X", message="no data"), START
    )
    session.commit()
    assert step(session, job, START)
    assert not step(session, job, START)
    (row,) = session.scalars(select(promotions.PromotionRow)).all()
    assert (row.decision, row.prefix) == (Decision.FAILED, "")
    assert row.reason == "projects/default/jobs/agent-1 is FAILED: no data"


def test_a_name_that_is_taken_is_not_waited_for(session):
    job = make(session)
    spec = submission.checked(job_pb2.JobSpec.FromString(job.spec))
    spec.ClearField("continuous")
    jobs.create(
        session, NewJob("default", "agent-1", spec, submission.known_description(spec)), START
    )
    session.commit()
    assert step(session, job, START)
    assert child_of(session, job).job_id == f"agent-1-{job.uid[:6]}"


def test_a_champion_that_was_changed_by_hand_during_the_contest_stays(session):
    job = make(session)
    step(session, job, START)
    end_well(session, child_of(session, job), 5.0, START)
    step(session, job, START)
    step(session, job, START + DAY)
    second = child_of(session, job)
    end_well(session, second, 9.0, START + DAY)
    best = agent_pb2.Evaluation.FromString(second.best or b"")
    by_hand = promotions.Policy(best.agent, best.checkpoint.prefix)
    promotions.promote(session, job, by_hand, START + DAY, reason="I like it")
    session.commit()
    assert step(session, job, START + DAY)
    newest = session.scalars(select(promotions.PromotionRow)).all()[-1]
    assert (newest.decision, newest.reason) == (
        Decision.KEPT,
        "the champion has been changed by hand meanwhile",
    )


def test_what_was_trained_once_more_is_promoted_and_what_was_selected_founds(session, monkeypatch):
    asked: list[str] = []

    def founder(_: Session, agent: str, prefix: str) -> None:
        asked.append(prefix)

    monkeypatch.setattr(founders, "of_checkpoint", founder)
    job = make(session)
    step(session, job, START)
    first = child_of(session, job)
    end_well(session, first, 5.0, START)
    best = agent_pb2.Evaluation.FromString(first.best or b"")
    retrained = agent_pb2.Parent(agent=f"{best.agent}-retrained", checkpoint=best.checkpoint)
    retrained.checkpoint.prefix = best.checkpoint.prefix.replace("/a1/", "/a1-retrained/")
    row = {
        "checkpoint_id": "18-2",
        "manifest_sha256": "0" * 64,
        "size_bytes": 1,
        "env_steps": 18,
        "fence": 2,
    }
    place = {"prefix": retrained.checkpoint.prefix, "job_uid": first.uid, "agent": retrained.agent}
    session.add(CheckpointRow(create_time=START, **place, **row))
    first.retrained = retrained.SerializeToString()
    session.commit()
    step(session, job, START)
    newest = session.scalars(select(promotions.PromotionRow)).all()[-1]
    assert (newest.decision, newest.prefix) == (Decision.PROMOTED, retrained.checkpoint.prefix)
    step(session, job, START + DAY)
    assert set(asked) == {best.checkpoint.prefix}


def test_a_cancelled_job_begins_nothing(session):
    job = make(session)
    step(session, job, START)
    jobs.cancel(session, job, START)
    session.commit()
    assert child_of(session, job).state == JobState.CANCELLED
    assert generations.running(session) == []
    assert not step(session, job, START + 3 * DAY)
