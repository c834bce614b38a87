"""The session that writes: rows that it keeps, and what it stores of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from podracer_core.database import Database, open_database
from podracer_orchestrator.leases import leases
from podracer_orchestrator.tables import EventRow, JobRow, LeaseRow, LeaseState, MemberRow, OutboxRow, WorkRow

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


@pytest.fixture
async def database(tmp_path: Path):
    async with open_database(f"sqlite:///{tmp_path}/a.sqlite", "podracer_orchestrator.migrations") as found:
        await found.write(fill)
        yield found


def fill(session: Session) -> None:
    session.add(LeaseRow(id="l", work_id="w", job_uid="j", kind="TRAIN", pod="x", instance_id="i", request_id="r"))
    (lease,) = session.new
    lease.state, lease.grant_time = LeaseState.HELD, NOW
    session.add(MemberRow(work_id="w", position=0, agent="a"))
    session.add(WorkRow(id="w", job_uid="j", kind="TRAIN", state="LEASED", create_time=NOW))
    session.add(JobRow(uid="j", project="p", job_id="j", spec=b"", state="RUNNING", create_time=NOW))
    session.add(EventRow(job_uid="j", position=1, kind="k", message="m", time=NOW, details={"a": "1"}))
    session.add_all(OutboxRow(board="b", job_uid="j", method=method, request=b"x") for method in "mn")


async def test_new_rows_go_in_after_those_that_they_refer_to_and_have_their_defaults(database: Database) -> None:
    def look(session: Session) -> None:
        lease, work = session.get_one(LeaseRow, 1), session.get_one(WorkRow, "w")
        assert (lease.grant_time, lease.cost_s, lease.is_cut, lease.end_time) == (NOW, 0.0, False, None)
        assert [member.agent for member in work.members] == ["a"]
        assert session.get_one(EventRow, ("j", 1)).details == {"a": "1"}
        assert [session.get_one(OutboxRow, number).method for number in (1, 2)] == ["m", "n"]

    await database.read(look)


async def test_a_row_is_read_once_and_only_what_changed_is_stored(database: Database) -> None:
    statements: list[str] = []

    def change(session: Session) -> None:
        session.connection().connection.driver_connection.set_trace_callback(statements.append)
        lease, job = session.get_one(LeaseRow, 1), session.get_one(JobRow, "j")
        assert leases.find_request(session, "r") is lease
        lease.end_time, job.env_steps, job.cost_s = NOW, job.env_steps + 5, job.cost_s

    await database.write(change)
    verbs = [statement.split()[0] for statement in statements]
    assert verbs == ["SELECT", "UPDATE", "UPDATE", "COMMIT"]
    assert "cost_s" not in " ".join(statements)
    assert await database.read(lambda session: session.get_one(JobRow, "j").env_steps) == 5


async def test_prepared_queries_see_what_was_changed_just_before(database: Database) -> None:
    def end(session: Session) -> list[int]:
        before = [lease.fence for lease in leases.held(session, pod="x")]
        session.get_one(LeaseRow, 1).state = LeaseState.RELEASED
        assert leases.held(session, pod="x") == leases.held(session) == []
        assert leases.held_counts(session) == {}
        return before

    assert await database.write(end) == [1]


async def test_what_a_failed_transaction_has_changed_is_forgotten(database: Database) -> None:
    def fail(session: Session) -> None:
        session.get_one(JobRow, "j").env_steps = 99
        session.flush()
        raise KeyError

    with pytest.raises(KeyError):
        await database.write(fail)
    assert await database.write(lambda session: session.get_one(JobRow, "j").env_steps) == 0
