"""What is done at the end of each transaction that writes: jobs that are due end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_orchestrator.jobs import JobOutcome, JobState, jobs
from podracer_orchestrator.outcomes import ending
from podracer_orchestrator.tables import Base, JobRow, WorkKind, WorkState
from podracer_orchestrator.transactions import Clock, due_topic, touch
from podracer_orchestrator.works import works

SPEC = job_pb2.JobSpec(objective=evolution_pb2.Objective(max_env_steps=100)).SerializeToString()


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine, expire_on_commit=False) as session:
        yield session
    engine.dispose()


def add_jobs(session: Session, numbers: range, env_steps: int) -> None:
    for number in numbers:
        session.add(
            JobRow(
                uid=f"u{number}",
                project="default",
                job_id=f"j{number}",
                spec=SPEC,
                state=JobState.PENDING,
                env_steps=env_steps,
                create_time=datetime.now(UTC),
            )
        )
    session.commit()
    session.expunge_all()


def end_due(session: Session, numbers: range) -> int:
    """How many statements it took."""
    statements: list[str] = []
    event.listen(
        session.get_bind(), "before_cursor_execute", lambda *call: statements.append(call[2])
    )
    touch(session, *(due_topic(f"u{number}") for number in numbers))
    ending.after_change(session, Clock())
    session.commit()
    return len(statements)


def test_jobs_are_looked_at_together(session):
    """The sweep touches every active job."""
    add_jobs(session, range(40), env_steps=0)
    assert end_due(session, range(40)) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_each_job_that_is_due_ends(session, count):
    add_jobs(session, range(count), env_steps=100)
    end_due(session, range(count))
    jobs = [session.get_one(JobRow, f"u{number}") for number in range(count)]
    assert [(job.state, job.outcome) for job in jobs] == [
        (JobState.FAILED, JobOutcome.NOTHING_JUDGED)
    ] * count


def test_a_job_that_is_gone_is_passed_over(session):
    add_jobs(session, range(1), env_steps=100)
    end_due(session, range(2))
    assert session.get_one(JobRow, "u0").state == JobState.FAILED


@pytest.mark.parametrize(
    ("of_before", "state"), [(False, JobState.PENDING), (True, JobState.SUCCEEDED)]
)
def test_a_final_begins_before_the_end_but_not_after_a_later_stage(session, of_before, state):
    """A version without finals may have begun that stage, with what a final would choose anew."""
    add_jobs(session, range(1), env_steps=100)
    job = session.get_one(JobRow, "u0")
    best = agent_pb2.Evaluation(returns=[1.0])
    best.duration.FromSeconds(1)
    job.best = best.SerializeToString()
    if of_before:
        jobs.add_work(session, job, WorkKind.ENSEMBLE, WorkState.DONE, datetime.now(UTC))
    session.commit()
    end_due(session, range(1))
    assert session.get_one(JobRow, "u0").state == state
    assert len(works.of_kind(session, job, WorkKind.FINAL, WorkState.PROPOSING)) == (not of_before)
